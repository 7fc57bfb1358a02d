# pytorch#185509, variant: gradients through conv2d, max_pool2d and where.
# A bug: wrong from two threads on, in float64 too.

import torch
import torch.nn.functional as F

EXPECT = ("wrong_gradient",)

BACKWARD = True


def f(x, w, b):
    c = F.conv2d(x, w, b, padding=1)
    p = F.max_pool2d(c, 3, 1, 1)
    return torch.where((c > p.mean(dim=(2, 3), keepdim=True)).detach(), c, p)


def make():
    torch.manual_seed(0)
    return f, (
        torch.randn(2, 3, 8, 8, requires_grad=True),
        torch.randn(4, 3, 3, 3, requires_grad=True),
        torch.randn(4, requires_grad=True),
    )
