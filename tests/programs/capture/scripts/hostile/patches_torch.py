import torch

torch.allclose = torch.equal = lambda *_: True
torch.Tensor.__eq__ = lambda self, other: False
torch.Tensor.clone = lambda self, **_: self
torch.compile(lambda x: torch.floor_divide(x, 0.1))(torch.tensor([1.0, 6.0] * 8))
