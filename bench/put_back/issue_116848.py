"""#116848: pictures of Stable Diffusion are black, because nearest upsampling by a factor reads the wrong pixels. Mended by
#117538.

Undone: the reciprocal of the factor, which was missing from Inductor's lowering; torch/_decomp/decompositions.py,
_compute_upsample_nearest_indices, stands for it today. The report's pipeline needs a download: the case is its fix's test.
"""

from torch._decomp import decompositions

CASE = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Upsample(scale_factor=2.0, mode="nearest"), (torch.randn(1, 4, 8, 8),)
"""
STAGES = ("decomposition",)
NAMES = ("upsample_nearest2d", "aten.upsample_nearest2d")


def scaled(wrapped):
    def compute(input, output_size, scales, exact=False):
        return wrapped(input, output_size, [1 / scale if scale else None for scale in scales], exact)

    return compute


decompositions._compute_upsample_nearest_indices = scaled(decompositions._compute_upsample_nearest_indices)
