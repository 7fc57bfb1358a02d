# pytorch#197895, variant: a histogram by one_hot of floor quotients.
# A bug: counts are exact integers in eager and others compiled.

import torch
import torch.nn.functional as F

EXPECT = ("miscompile",)


def make():
    return (lambda x: F.one_hot((x // 0.1).long(), 12).sum(0)), (
        torch.tensor([0.3, 0.6, 0.7, 0.9, 1.0, 0.1, 0.2, 0.5] * 4),
    )
