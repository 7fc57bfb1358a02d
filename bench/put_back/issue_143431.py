"""#143431: a random draw that nothing uses is removed, so that later draws are others than eager's. Mended by #144319.

Undone: random operators are pure again for torch/fx/node.py, Node.is_impure (#144319 heeds them if fallback_random is on).
"""

import torch

CASE = """
import torch


def f(image):
    x = torch.rand(2, 12)
    indices = torch.argsort(torch.rand(*x.shape), dim=-1)[:, :6]
    return image[torch.arange(2).unsqueeze(-1), indices][:, :3]


def make():
    torch.manual_seed(54321)
    return f, (torch.randn(2, 12, 4),)


BACKEND = "aot_eager"
CONFIG = {"inductor": {"fallback_random": True}}
"""
STAGES = ("functionalization", "dynamo")
NAMES = ("rand", "aten.rand", "eliminate_dead_code", "is_impure")


def pure(wrapped):
    return lambda self, impure_random=True: wrapped(self, impure_random=False)


torch.fx.Node.is_impure = pure(torch.fx.Node.is_impure)
