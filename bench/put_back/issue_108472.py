"""A slice of an input that has an offset in its storage itself is read from the beginning of the storage.

Mended by pull requests 108168 and 108259 (`reinterpret_tensor` adds to the offset of its argument). Undone in
torch/_inductor/codegen/wrapper.py, `PythonWrapperCodegen.codegen_reinterpret_view`: it writes `as_strided`. The
report returns the slice, which is replayed on the input since; this multiplies it.
"""

import inspect

from torch._inductor.codegen.wrapper import PythonWrapperCodegen

CASE = """
import torch


def fn(x, y):
    return torch.mm(x[16:32].view(4, 4), y)


with torch.no_grad():
    torch.manual_seed(0)
    x, y = torch.randn(1024), torch.randn(4, 4)
    compiled = torch.compile(fn, fullgraph=True)
    compiled(x[0:], y)
    print(compiled(x[128:], y))
"""
STAGES = ("codegen",)
NAMES = (
    "aten.slice",
    "slice",
    "aten.view",
    "view",
    "aten.reshape",
    "reshape",
    "codegen_reinterpret_view",
    "reinterpret_tensor",
)

function = PythonWrapperCodegen.codegen_reinterpret_view
source = inspect.getsource(function)
source = source.replace("reinterpret_tensor({name}", "torch.as_strided({name}")
source = "class PythonWrapperCodegen:\n" + source
methods = next(
    one for one in compile(source, function.__code__.co_filename, "exec").co_consts if hasattr(one, "co_code")
)
function.__code__ = next(
    one for one in methods.co_consts if getattr(one, "co_name", None) == "codegen_reinterpret_view"
)
