"""`nn.Dropout1d` drops others than eager with `fallback_random`, which is to draw the same numbers.

Mended by pull request 143460 (no decomposition of `bernoulli.p` if random numbers are to be eager's). Undone in
torch/_inductor/decomposition.py, `decompositions`: it is decomposed, into `rand`, which draws other numbers.
"""

import torch
from torch._inductor.decomposition import decompositions

CASE = """
import torch

OPTIONS = {"fallback_random": True}


def make():
    torch.manual_seed(0)
    return torch.nn.Dropout1d(p=0.5), (torch.randn(1, 32, 4),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.bernoulli", "bernoulli", "bernoulli_p", "feature_dropout", "dropout")


def bernoulli_p(self, p, *, generator=None):
    return (torch.rand(self.size(), dtype=torch.float32, device=self.device, generator=generator) < p).to(self.dtype)


decompositions[torch.ops.aten.bernoulli.p] = bernoulli_p
