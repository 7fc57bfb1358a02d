# pytorch#197554, variant: repeat_interleave with a wrong output_size.
# A bug: eager raises; compiled returns a tensor of that size.

import torch

EXPECT = ("accepts_invalid",)


def make():
    return (lambda x, r: torch.repeat_interleave(x, r, output_size=9)), (
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([1, 2, 3]),
    )
