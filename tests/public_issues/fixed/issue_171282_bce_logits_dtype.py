# pytorch#171282: dtype of the mean of a loss with weights of another dtype.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")


def make():
    torch.manual_seed(0)
    return (lambda a, t, w: torch.ops.aten.binary_cross_entropy_with_logits(a, t, w, None, 1)), (
        torch.randn(4, 5, 6).bfloat16(),
        torch.rand(4, 5, 6).bfloat16(),
        torch.rand(6),
    )
