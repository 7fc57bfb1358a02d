# pytorch#174459: a sort of many equal numbers.
# No bug: any order of equal elements is right where no stable sort is asked for.

import torch

EXPECT = ("equal", "unstable")


def make():
    torch.manual_seed(0)
    return (lambda x: torch.ops.aten.sort.stable(x, stable=None, dim=-1, descending=True)), (
        torch.randint(1, 3, (8, 30)),
    )
