"""An autograd.Function whose backward pass adds a constant to an input in place: compiled, the input stays as it was.

Mended by pull request 155353 (what is copied to an input without a tangent is kept when the backward graph is put in
autograd's order). Undone in torch/_functorch/partitioners.py, `reordering_to_mimic_autograd_engine`.
"""

import inspect

from torch._functorch import partitioners

CASE = """
import torch


class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, state):
        ctx.state = state
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.state.add_(1)
        return grad, None


def f(x, state):
    return Count.apply(x, state)


BACKWARD = True


def make():
    return f, (torch.ones(2, requires_grad=True), torch.zeros(2))
"""
STAGES = ("partition",)
NAMES = ("reordering_to_mimic_autograd_engine", "aten.copy_", "copy_")

source = inspect.getsource(partitioners.reordering_to_mimic_autograd_engine)
source = source.replace("node.target is torch.ops.aten.copy_.default", "False")
exec(compile(source, partitioners.__file__, "exec"), vars(partitioners))
