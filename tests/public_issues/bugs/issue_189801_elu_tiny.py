# pytorch#189801: elu of tiny negative numbers, divided by zero.
# A bug: elu(x) is x there and x/0 = -inf; exp(x) - 1 is 0 and 0/0 = NaN.

import torch
import torch.nn.functional as F

EXPECT = ("nonfinite",)


def make():
    return (lambda x: torch.div(F.elu(x, alpha=0.52), torch.zeros_like(x))), (
        torch.tensor([-1e-8, -1e-9, -1e-10, -1e-20, -1e-30, -1e-36]),
    )
