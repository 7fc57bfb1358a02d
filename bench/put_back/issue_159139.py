"""#159139: torch.compile(nn.ModuleList()) is true, though an empty list is false. Mended by #159208.

Undone: torch/_dynamo/eval_frame.py, OptimizedModule.__len__ is missing again.
"""

from torch._dynamo.eval_frame import OptimizedModule

CASE = """
import torch
from torch import nn


def make():
    return nn.ModuleList(), ()


def run(model, inputs):
    return bool(model)
"""
STAGES = ("dynamo",)
NAMES = ("OptimizedModule", "__len__", "__bool__", "ModuleList")

del OptimizedModule.__len__
