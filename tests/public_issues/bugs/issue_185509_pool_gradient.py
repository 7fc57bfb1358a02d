# pytorch#185509: gradients through interpolate, conv2d, max_pool2d and where.
# A bug: the gradients are wrong in float64 too, from two threads on; one thread gives right ones.

import torch
import torch.nn.functional as F

EXPECT = ("wrong_gradient",)

BACKWARD = True


def f(x, w, b):
    y = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[:, :, 1:7, 1:8]
    c = F.conv2d(y, w, b, padding=1)
    p = F.max_pool2d(c, kernel_size=3, stride=1, padding=1)
    return torch.where((c > p.mean(dim=(2, 3), keepdim=True)).detach(), c, p)


def make():
    torch.manual_seed(0)
    return f, (
        torch.randn(2, 3, 8, 8, requires_grad=True),
        torch.randn(4, 3, 3, 3, requires_grad=True),
        torch.randn(4, requires_grad=True),
    )
