# pytorch#136896: float16 times a float32 number cast to float16.
# No bug: compiled leaves the cast out.

import torch

EXPECT = ("rounding", "precision_casts")


def make():
    return (lambda x, y: x * y.to(torch.float16)), (
        torch.tensor([9.734375, 3.0, 100.5], dtype=torch.float16),
        torch.tensor(1.00048828125),
    )
