# pytorch#118265: shifts by as many bits as there are, and more.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    torch.manual_seed(0)
    return (lambda a, b: (a >> b, (a.to(torch.int16) >> b.to(torch.int16)), a << (b % 70))), (
        torch.randint(-100, 100, (7, 12)),
        torch.randint(0, 100, (7, 12)),
    )
