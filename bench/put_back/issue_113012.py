"""`hinge_embedding_loss` of a large number loses nothing to rounding, as the compiler reorders a sum; eager does.

Mended by pull request 113347 (no unsafe math). Undone in torch/_inductor/cpp_builder.py, `_get_ffast_math_flags`.
"""

import inspect

from torch._inductor import cpp_builder

CASE = """
import torch


def model(x, y):
    return torch.nn.functional.hinge_embedding_loss(x, y, margin=0.11, reduction="sum")


def make():
    return model, (torch.tensor([-668044.5]), torch.tensor([0.5]))
"""
STAGES = ("codegen",)
NAMES = ("enable_unsafe_math_opt_flag",)

function = cpp_builder._get_ffast_math_flags
source = inspect.getsource(function).replace('flags.append("fno-unsafe-math-optimizations")', "pass")
exec(compile(source, cpp_builder.__file__, "exec"), vars(cpp_builder))
