"""`torch.var_mean` with a correction above the number of elements divides by a negative number; eager gives nan or inf.

Mended by pull request 113284 (the divisor is at least 0). Undone in torch/_inductor/lowering.py, `var_mean_sum_` and
`var_mean_welford_`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch


def model(x):
    return torch.var_mean(x, correction=4.9, dim=-1, keepdim=True)


def make():
    torch.manual_seed(0)
    return model, (torch.rand([]),)
"""
STAGES = ("lowering",)
NAMES = ("aten.var_mean", "var_mean")

for function, old, new in (
    (lowering.var_mean_sum_, "Max(denom - correction, 0)", "denom - correction"),
    (lowering.var_mean_welford_, "ops.maximum(zero, N - c)", "(N - c)"),
):
    exec(compile(inspect.getsource(function).replace(old, new), lowering.__file__, "exec"), vars(lowering))
