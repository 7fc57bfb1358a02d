# pytorch#188048: div(rounding_mode="floor") of infinities.
# A bug: eager follows fmod and gives NaN or -1; compiled gives infinities and 0.

import torch

EXPECT = ("nonfinite",)


def make():
    i = float("inf")
    return (lambda a, b: torch.div(a, b, rounding_mode="floor")), (
        torch.tensor([float("nan"), i, -i, 5.0, -5.0, 0.0, 1.0, 7.5], dtype=torch.float64),
        torch.tensor([1.0, 1.0, 1.0, i, i, 0.0, 0.0, 2.0], dtype=torch.float64),
    )
