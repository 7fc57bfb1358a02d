# pytorch#173307, variant: the gradient of gelu in bfloat16.
# No bug: both round to bfloat16 once or twice.

import torch
import torch.nn.functional as F

EXPECT = ("equal", "rounding", "precision_casts")

BACKWARD = True


def make():
    torch.manual_seed(0)
    return (lambda x: F.gelu(x, approximate="tanh")), (torch.randn(3, 5, 20).bfloat16().requires_grad_(),)
