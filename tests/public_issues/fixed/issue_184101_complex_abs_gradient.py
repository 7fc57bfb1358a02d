# pytorch#184101: the gradient of abs and angle of a transposed complex tensor.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")

BACKWARD = True


def make():
    torch.manual_seed(0)
    return (lambda x: x.t().abs() + x.t().angle()), (torch.randn(3, 4, dtype=torch.complex64, requires_grad=True),)
