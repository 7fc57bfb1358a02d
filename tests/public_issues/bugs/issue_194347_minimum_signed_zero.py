# pytorch#194347: copysign sees the zero that minimum(-0.0, 0.0) returns.
# A bug: the last element, beyond the vectors, is -0.0 in eager and 0.0 compiled: the results are -1 and 1. (Eager's own
# vectors give 0.0 too, so that this is the weakest of the bugs here.)

import torch

EXPECT = ("miscompile",)


def make():
    return (lambda x, y: torch.copysign(torch.ones_like(x), torch.minimum(x, y))), (
        torch.tensor([-0.0] * 17),
        torch.tensor([0.0] * 17),
    )
