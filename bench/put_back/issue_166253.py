"""#166253: torch.full of a tensor's value, compiled: a later call gives the value of the first. Mended by #166554.

Undone: the handler of torch.full in torch/_dynamo/variables/torch.py (handle_full) reads the tensor's number into the
graph again, instead of filling an empty tensor with it. The number is guarded, and the second call traced anew; what
gives the first value is the graph in AOTAutograd's cache, whose key does not tell the two numbers apart. torch 2.13
still does that without this plant, where a program calls `aten._local_scalar_dense` itself: the mended handler only
reaches it no more. So the key is a right answer too.
"""

import torch
from torch._dynamo.variables import TorchInGraphFunctionVariable

CASE = """
import torch


@torch.compile
def f(x):
    return torch.full((2,), x, dtype=torch.float64)


f(torch.tensor(5.0, dtype=torch.float64))
f(torch.tensor(10.0, dtype=torch.float64))
"""
STAGES = ("dynamo", "functionalization")
NAMES = ("full", "aten.full", "handle_full", "_local_scalar_dense", "autograd_cache_key")


def handle_full(self, tx, size, fill_value, **kwargs):
    if not fill_value.is_tensor():
        return None
    number = TorchInGraphFunctionVariable(torch.ops.aten._local_scalar_dense).call_function(tx, [fill_value], {})
    return TorchInGraphFunctionVariable(torch.full).call_function(tx, [size, number], kwargs)


TorchInGraphFunctionVariable._get_handlers()[torch.full] = handle_full
