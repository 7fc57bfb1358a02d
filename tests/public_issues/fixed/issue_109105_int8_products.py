# pytorch#109105: int8 products that overflow.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    torch.manual_seed(0)
    return (lambda x, y: ((x + y) * 6, x * 6 + y * 6)), (
        torch.randint(-128, 128, (3, 40), dtype=torch.int8),
        torch.randint(-128, 128, (3, 40), dtype=torch.int8),
    )
