"""A slice of an input that has an offset in its storage itself is read from the beginning of the storage.

Mended by pull requests 108168 and 108259 (`reinterpret_tensor` adds to the offset of its argument). Undone in
torch/_inductor/codegen/wrapper.py, `PythonWrapperCodegen.codegen_reinterpret_view`: it writes `as_strided`.
"""

import inspect

from torch._inductor.codegen.wrapper import PythonWrapperCodegen

CASE = """
import torch


@torch.compile(fullgraph=True)
def fn(x):
    return x[16:32]


with torch.no_grad():
    torch.manual_seed(0)
    x = torch.randn(1024)
    print(fn(x[0:]))
    print(fn(x[128:]))
"""
STAGES = ("codegen",)
NAMES = ("aten.slice", "slice", "codegen_reinterpret_view", "reinterpret_tensor")

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
