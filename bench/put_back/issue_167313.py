"""`addmm` with alpha and beta, followed by pointwise operators, is rewritten to `x + a @ b` without them.

Mended by pull request 167317 (the replacement multiplies by them). Undone in torch/_inductor/fx_passes/post_grad.py,
`unfuse_bias_add_to_pointwise`; the pass, which is for GPUs as a matter of speed, is let run on a CPU as well.
"""

import inspect

from torch._inductor.fx_passes import post_grad

CASE = """
import torch


def model(x, a, b):
    return torch.addmm(x, a, b, beta=0.5, alpha=2.0).relu()


def make():
    torch.manual_seed(0)
    return model, (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8))
"""
STAGES = ("post_grad",)
NAMES = ("unfuse_bias_add_to_pointwise",)


def unfuse(match, mat1, mat2, *, inp, alpha, beta):
    match.replace_by_example(lambda inp, x1, x2: inp + x1 @ x2, [inp, mat1, mat2])


handler = inspect.unwrap(post_grad.unfuse_bias_add_to_pointwise)
handler.__code__ = unfuse.__code__
post_grad.should_prefer_unfused_addmm.__code__ = (lambda match: True).__code__
