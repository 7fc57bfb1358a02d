"""pytorch#181695: a branch on the sign of a pooled mean that is zero but for rounding.

Closed by the maintainers as no bug of Inductor: the order of the reduction decides the sign.
At fault: none (rounding; the branch amplifies it)
"""

import torch
import torch.nn as nn

EXPECT = ("unstable",)

torch.manual_seed(0)
x = torch.randn([15, 13, 13, 13])

inst_norm = nn.InstanceNorm2d(13)
pool1 = nn.AdaptiveAvgPool2d((1, 1))
pool2 = nn.AdaptiveAvgPool2d((1, 1))


def model():
    normed = inst_norm(x)
    pooled = pool1(normed)
    pooled2 = pool2(pooled)
    selected = torch.where(pooled > 0, pooled, normed)
    return torch.sub(pooled2, selected)


eager_out = model()
compiled_out = torch.compile(model, backend="inductor")()
print("max diff:", (eager_out - compiled_out).abs().max().item())
