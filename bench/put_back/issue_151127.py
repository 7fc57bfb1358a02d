"""`torch._check(a == 5 or b == 5)` of numbers read from tensors fails where it holds: `not` is of the first half alone.

Mended by pull request 151171 (the condition has its parentheses in the generated code), a problem that the report's
comments add to its own. Undone in torch/_inductor/ir.py, `AssertScalar.codegen`.
"""

import __future__
import inspect
import textwrap

from torch._inductor import ir

CASE = """
import operator

import torch

CONFIG = {"dynamo": {"capture_scalar_outputs": True}}
FULLGRAPH = True


def model(a, b):
    torch._check(operator.or_(a.item() == 5, b.item() == 5))
    return a * 10


def make():
    return model, (torch.tensor([100]), torch.tensor([5]))
"""
STAGES = ("lowering", "codegen")
NAMES = ("AssertScalar", "aten._assert_scalar", "_assert_scalar", "torch._check", "_check")

source = textwrap.dedent(inspect.getsource(ir.AssertScalar.codegen))
source = source.replace("if not ({sizevar}):", "if not {sizevar}:")
scope = {}
exec(compile(source, ir.__file__, "exec", __future__.annotations.compiler_flag), vars(ir), scope)
ir.AssertScalar.codegen = scope["codegen"]
