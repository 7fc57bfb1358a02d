"""`softmax` of products around 1e14 is nan: product and difference are contracted to one operation that rounds once.

Mended by pull request 116318 (`-ffp-contract=off`). Undone in torch/_inductor/cpp_builder.py,
`_get_ffast_math_flags`. The report multiplies by one number, which a later rewrite keeps right; this multiplies by many.
"""

import inspect

from torch._inductor import cpp_builder

CASE = """
import torch


def model(x, scale):
    return x.mul(scale).softmax(dim=-1)


def make():
    torch.manual_seed(420)
    return model, (torch.randn(10, 32), -1.7197e14 * torch.rand(10, 32))
"""
STAGES = ("codegen",)
NAMES = ("enable_floating_point_contract_flag",)

function = cpp_builder._get_ffast_math_flags
source = inspect.getsource(function).replace("{config.cpp.enable_floating_point_contract_flag}", "fast")
exec(compile(source, cpp_builder.__file__, "exec"), vars(cpp_builder))
