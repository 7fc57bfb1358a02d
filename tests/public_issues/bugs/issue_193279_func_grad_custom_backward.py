"""pytorch#193279: func.grad over an autograd.Function takes the derivative of its forward, not its backward.

At fault: dynamo, autograd.Function under torch.func.grad (forward inlined, backward dropped)
"""

import torch

EXPECT = ("miscompile",)


class SinWithZeroBackward(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


def loss(x):
    return SinWithZeroBackward.apply(x).sum()


def make():
    torch.manual_seed(0)
    return torch.func.grad(loss), (torch.randn(4),)
