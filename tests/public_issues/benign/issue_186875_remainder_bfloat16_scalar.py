# pytorch#186875: remainder of bfloat16 by the Python number 1.7.
# No bug: eager rounds 1.7 to bfloat16, compiled does not; at a multiple that is a whole period.

import torch

EXPECT = ("unstable", "rounding")


def make():
    return (lambda x: (torch.fmod(x, 1.7), torch.remainder(x, 1.7))), (
        torch.tensor([1.703125, -1.703125, 3.0, 0.4], dtype=torch.bfloat16),
    )
