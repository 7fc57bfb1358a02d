# pytorch#109925: scans of booleans, integers and -inf.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal", "rounding")


def make():
    return (lambda b, i, x: (b.cumsum(0), i.cumprod(0), torch.logcumsumexp(x, 0), i.cumsum(0, dtype=torch.float32))), (
        torch.tensor([True, False, True] * 8),
        torch.arange(1, 25, dtype=torch.int32),
        torch.cat([torch.tensor([float("-inf")] * 3), torch.arange(21.0) * 10]),
    )
