"""`avg_pool2d` of integers is all zeros: the sum is multiplied by the inverse of the window's size, which is 0 as int64.

Mended by pull request 144059 (the sum is divided). Undone in torch/_inductor/lowering.py, `_avg_poolnd`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.AvgPool2d(kernel_size=2, stride=2), (torch.randint(0, 100, (1, 2, 4, 4)),)
"""
STAGES = ("lowering",)
NAMES = ("aten.avg_pool2d", "avg_pool2d")

source = inspect.getsource(lowering._avg_poolnd)
source = source.replace(
    "result = div_prim(rv, divisor)",
    "result = make_pointwise(lambda value: ops.mul(value, ops.constant(1 / divisor, dtype)))(rv)",
)
exec(compile(source, lowering.__file__, "exec"), vars(lowering))
