# pytorch#145466, variant: floor of a computed number, as an index.
# No bug: the number lies on a jump of floor up to rounding.

import torch

EXPECT = ("equal", "unstable")


def make():
    torch.manual_seed(0)
    return (lambda x: torch.floor(torch.cos(x) * 4 + torch.sin(x) * 3).long()), (
        torch.arange(0, 4000) * 0.7853981633974483,
    )
