import torch


def make():
    torch.manual_seed(0)
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    return (lambda x: x.sin() + 1), (nested,)
