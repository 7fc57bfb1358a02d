# pytorch#133542: topk with ties.
# No bug: which of equal elements is taken is not specified.

import torch

EXPECT = ("equal", "unstable")


def make():
    torch.manual_seed(0)
    return (lambda x: torch.topk(x * 1.0, 5)), (torch.randint(0, 4, (6, 40)).float(),)
