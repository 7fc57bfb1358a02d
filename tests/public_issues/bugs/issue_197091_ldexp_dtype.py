# pytorch#197091: ldexp of a bool mantissa and of mixed precisions.
# A bug: eager promotes both operands; compiled takes the dtype of the mantissa alone.

import torch

EXPECT = ("metadata",)


def make():
    torch.manual_seed(0)
    return (lambda a, b, c, d: (torch.ldexp(a, b), torch.ldexp(c, d))), (
        torch.ones(3, 4, dtype=torch.bool),
        torch.randn(3, 4).half(),
        torch.randn(3, 4).half(),
        torch.randn(3, 4),
    )
