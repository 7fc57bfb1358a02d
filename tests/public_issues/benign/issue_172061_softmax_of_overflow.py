# pytorch#172061, variant: softmax of float16 logits that overflow.
# No bug: eager is inf - inf in some rows, where float64 has a number that float16 cannot lead to.

import torch

EXPECT = ("unstable", "rounding")


def make():
    torch.manual_seed(0)
    return (lambda x: (x * x).softmax(-1)), ((torch.randn(4, 32) * 120).half(),)
