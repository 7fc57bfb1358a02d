"""The gradient is lost of an input that is multiplied in place where no new output requires one.

Mended by pull request 128229 (a graph that writes to an input that requires gradients is differentiated). Undone in
torch/_functorch/aot_autograd.py, `create_aot_state`.
"""

import __future__
import inspect

from torch._functorch import aot_autograd

CASE = """
import torch


def f(a):
    tmp = a.detach()
    a.mul_(2)
    return a, tmp


BACKWARD = True


def make():
    return f, (torch.ones(3, requires_grad=True),)


def run(model, inputs):
    return model(inputs[0].mul(2))
"""
STAGES = ("functionalization",)
NAMES = ("create_aot_state", "needs_autograd", "aten.mul_", "mul_")

source = inspect.getsource(aot_autograd.create_aot_state)
start = source.index(") and not any(\n                x.requires_grad\n                and x.mutates_data")
end = source.index("if needs_autograd and output_and_mutation_safe:")
source = source[:start] + ")\n\n            " + source[end:]
exec(compile(source, aot_autograd.__file__, "exec", __future__.annotations.compiler_flag), vars(aot_autograd))
