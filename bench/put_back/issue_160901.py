"""A tensor gets a gradient by being written to, and an autograd.Function of it is inlined without its own backward.

Mended by pull request 161036 (what is written in place is asked again whether it requires a gradient). Undone in
torch/_dynamo/variables/tensor.py, `TensorVariable._sync_if_inplace_mutation`. The stored copy of the report breaks off
within its indices; the assignment is that of torchtitan, in which the bug was met.
"""

from torch._dynamo.variables import TensorVariable

CASE = """
import torch


class MyFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.matmul(x, (torch.ones_like(x) * 10).t())

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out


def f(out):
    unpermuted = out.new_empty(out.shape)
    unpermuted[torch.tensor([2, 0, 3, 1])] = out
    return MyFn.apply(unpermuted)


BACKWARD = True


def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 4, requires_grad=True),)
"""
STAGES = ("dynamo",)
NAMES = ("setitem", "__setitem__", "_sync_if_inplace_mutation", "autograd.Function", "MyFn", "apply")

TensorVariable._sync_if_inplace_mutation = lambda self, *args: None
