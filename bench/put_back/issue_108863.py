"""#108863: without gradients compiled code keeps the weights of its first call. Mended by #108953.

Undone: parameters are inputs, not constants (torch._inductor.config.freezing).
"""

import torch

CASE = """
import torch
from torch import nn

GRAD = "no_grad"


def make():
    torch.manual_seed(0)
    return nn.Linear(4, 4).eval(), (torch.randn(2, 4),)


def run(model, inputs):
    first = model(*inputs)
    model.weight.mul_(2)
    return first, model(*inputs)
"""
STAGES = ("freezing", "dynamo")
NAMES = ("freezing", "constant_fold", "freeze")

torch._inductor.config.freezing = True
