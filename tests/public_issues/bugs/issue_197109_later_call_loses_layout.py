"""#197109: ``channel_shuffle`` decomposed gives a contiguous result for a channels-last input.

The script compiles for two backends in turn, and the first of them is right.
"""

import torch
from torch.nn import functional as F

EXPECT = ["metadata"]


def shuffled(images):
    return F.channel_shuffle(images, 2)


images = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
for backend in ("eager", "inductor"):
    torch._dynamo.reset()
    print(backend, torch.compile(shuffled, backend=backend)(images).stride())
