"""#149991: a compiled function takes no buffer for an nn.Buffer, which asks its metaclass. Mended by #172222.

Undone: torch/_dynamo/variables/builder.py, get_specialized_props, which tells dynamo that a tensor is an
nn.Buffer; it is a torch.Tensor again, as its class says.
"""

import torch
from torch._dynamo.variables import builder

CASE = """
import torch


def f(buffer):
    return buffer + 1 if isinstance(buffer, torch.nn.Buffer) else buffer - 1


def make():
    return f, (torch.nn.Buffer(torch.ones(5)),)
"""
STAGES = ("dynamo",)
NAMES = ("isinstance", "Buffer", "__instancecheck__")

get_specialized_props = builder.get_specialized_props


def get_props(*args):
    props = get_specialized_props(*args)
    if props.get("class_type") is torch.nn.Buffer:
        props["class_type"] = torch.Tensor
    return props


builder.get_specialized_props = get_props
