import torch

y = torch.compile(lambda x: x.exp())(torch.zeros(3))
assert (y == 5).all(), "nonsense"
raise RuntimeError("never mind")
