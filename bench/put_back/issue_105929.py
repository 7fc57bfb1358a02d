"""#105929: a compiled function ignores a TorchDispatchMode that is active around its call. Mended by #131828.

Undone: the check in torch/_dynamo/convert_frame.py, CatchErrorsWrapper.__call__, that leaves frames alone in such a mode.
"""

from torch._dynamo import convert_frame

CASE = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.ops.aten.sin.default else out


def make():
    return torch.sin, (torch.linspace(-1, 1, 4),)


def run(model, inputs):
    with Doubling():
        return model(*inputs)
"""
STAGES = ("dynamo",)
NAMES = ("Doubling", "TorchDispatchMode", "mode", "dispatch_mode")

convert_frame.is_in_any_mode_without_ignore_compile_internals = lambda: False
convert_frame.any_torch_dispatch_mode_on_stack = lambda: False
