"""`torch.abs` with a transposed `out=` returns a tensor of other strides than eager, which returns `out` itself.

Mended by pull request 113267 (Dynamo breaks the graph at an `out` that is not contiguous). Undone in
torch/_dynamo/variables/torch.py, `TorchInGraphFunctionVariable`.
"""

import inspect

from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

CASE = """
import torch


def model(x):
    return torch.abs(x, out=torch.zeros(10, 9).T)


def make():
    torch.manual_seed(0)
    return model, (torch.randn(9, 10),)
"""
STAGES = ("dynamo", "functionalization")
NAMES = ("aten.abs", "abs", "out", "aten.abs.out")

function = TorchInGraphFunctionVariable.call_function
source = inspect.getsource(function)
source = source.replace("not torch._prims_common.is_contiguous_or_false(fake_out)", "False")
source = "class TorchInGraphFunctionVariable:\n" + source
methods = next(
    one for one in compile(source, function.__code__.co_filename, "exec").co_consts if hasattr(one, "co_code")
)
function.__code__ = next(one for one in methods.co_consts if getattr(one, "co_name", None) == "call_function")
