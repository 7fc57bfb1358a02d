# pytorch#97333: fmod of float16 by 2.3.
# No bug: both round 2.3 and the result to float16.

import torch

EXPECT = ("rounding", "unstable")


def make():
    torch.manual_seed(0)
    return (lambda x: torch.fmod(x, 2.3)), ((torch.rand(4, 4) * 4 + 3).half(),)
