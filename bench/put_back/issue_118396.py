"""#118396: dynamo ignores what an autograd.Function says to its context. Mended by #119353.

Undone: ctx.mark_non_differentiable is heeded (torch/_dynamo/variables/misc.py).
"""

from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.misc import AutogradFunctionContextVariable

CASE = """
import torch


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rounded = x.floor()
        ctx.mark_non_differentiable(rounded)
        return x * 2, rounded

    @staticmethod
    def backward(ctx, grad, grad_rounded):
        return grad * 2 + grad_rounded


def f(x):
    doubled, rounded = Split.apply(x)
    return doubled + rounded * 3


BACKWARD = True


def make():
    return f, (torch.linspace(-2, 2, 6).requires_grad_(),)
"""
STAGES = ("dynamo",)
NAMES = ("mark_non_differentiable", "autograd.Function", "Split", "apply")

call_method = AutogradFunctionContextVariable.call_method


def ignore(self, tx, name, args, kwargs):
    if name == "mark_non_differentiable":
        return ConstantVariable.create(None)
    return call_method(self, tx, name, args, kwargs)


AutogradFunctionContextVariable.call_method = ignore
