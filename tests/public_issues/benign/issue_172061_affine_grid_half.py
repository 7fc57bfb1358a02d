# pytorch#172061: an affine grid in float16.
# No bug: eager rounds the products to float16; compiled does not.

import torch

EXPECT = ("rounding", "precision_casts")


def make():
    torch.manual_seed(0)
    return (lambda t: torch.ops.aten.affine_grid_generator(t, [3, 1, 8, 8, 8], True)), (torch.randn(3, 3, 4).half(),)
