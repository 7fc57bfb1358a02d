# pytorch#150165: upsampling, then the inverse of nearly singular matrices.
# No bug: the condition number is beyond float32, so eager has no correct digit.

import torch
import torch.nn.functional as F

EXPECT = ("unstable",)


def make():
    torch.manual_seed(0)
    return (lambda x: torch.inverse(F.interpolate(x, size=(64, 64), mode="bilinear", align_corners=True))), (
        torch.randn(1, 3, 32, 32),
    )
