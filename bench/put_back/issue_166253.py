"""#166253: torch.full of a tensor's value, compiled: a later call gives the value of the first. Mended by #166554.

Undone: the handler of torch.full in torch/_dynamo/variables/torch.py (handle_full) reads the tensor's number into the graph
again, instead of filling an empty tensor with it.
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
STAGES = ("dynamo",)
NAMES = ("full", "aten.full", "handle_full", "_local_scalar_dense")


def handle_full(self, tx, size, fill_value, **kwargs):
    if not fill_value.is_tensor():
        return None
    number = TorchInGraphFunctionVariable(torch.ops.aten._local_scalar_dense).call_function(tx, [fill_value], {})
    return TorchInGraphFunctionVariable(torch.full).call_function(tx, [size, number], kwargs)


TorchInGraphFunctionVariable._get_handlers()[torch.full] = handle_full
