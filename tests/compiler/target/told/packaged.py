"""A program for AOTInductor, whose package holds its kernels as machine code."""

import torch

PATH = "aoti"


def program(x):
    return torch.tanh(x) * 2


def make():
    return program, (torch.randn(8, 16),)
