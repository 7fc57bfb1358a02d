"""`FractionalMaxPool2d` takes the random sample of the width for the height and the other way round.

Mended by pull request 144395 (samples are in the order of width, height). Undone in torch/_inductor/lowering.py,
`_fractional_pooling_offsets`.
"""

import inspect

from torch._inductor import lowering

CASE = """
import torch

OPTIONS = {"fallback_random": True}


def make():
    torch.manual_seed(0)
    model = torch.nn.FractionalMaxPool2d(kernel_size=(1, 1), output_ratio=(0.5, 0.5))
    return model.eval(), (torch.randn(1, 1, 10, 10),)
"""
STAGES = ("lowering",)
NAMES = ("aten.fractional_max_pool2d", "fractional_max_pool2d")

source = inspect.getsource(lowering._fractional_pooling_offsets).replace("ndims - 1 - dim", "dim")
exec(compile(source, lowering.__file__, "exec"), vars(lowering))
