# pytorch#89064: round half to even, with decimals, and trunc, ceil and a cast.
# No bug any more; right in torch 2.13.

import torch

EXPECT = ("equal",)


def make():
    return (
        lambda x: (torch.round(x), torch.round(x * 10, decimals=1), torch.trunc(x), torch.ceil(x), x.to(torch.int32))
    ), (torch.arange(-8.5, 8.5, 0.5),)
