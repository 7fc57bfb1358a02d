"""`a.data = b` and then `b.data = ...` are lost (in torch 2.1, both tensors got what `b` is in the end).

Mended by pull request 113080 (an assignment to `.data` is traced as `set_`, hidden from autograd). Undone in
torch/_dynamo/variables/builtin.py, `SetAttrBuiltinVariable._call_setattr`: `setattr` itself is a node of the graph.
"""

import __future__
import inspect
import textwrap

from torch._dynamo.variables import builtin

CASE = """
import torch


def model(x, y):
    x.data = y
    y.data = torch.zeros(0)
    return x


def make():
    torch.manual_seed(0)
    return model, (torch.rand(6), torch.rand(6))
"""
STAGES = ("dynamo", "functionalization")
NAMES = ("setattr", "data", "set_", "STORE_ATTR")

source = inspect.getsource(builtin.SetAttrBuiltinVariable._call_setattr)
start = source.index("# Step 1 - disable grads")
end = source.index("return out\n", start)
indent = "\n" + " " * 20
source = (
    source[:start]
    + indent.join(
        [
            "tx.output.create_proxy('call_function', setattr, (obj.as_proxy(), name, val.as_proxy()), {})",
            "with torch.no_grad():",
            "    setattr(obj.as_proxy().node.meta['example_value'], name, val.as_proxy().node.meta['example_value'])",
            "return obj\n",
        ]
    )
    + source[end + len("return out\n") :]
)
scope = {}
flags = __future__.annotations.compiler_flag
exec(compile(textwrap.dedent(source), builtin.__file__, "exec", flags), vars(builtin), scope)
builtin.SetAttrBuiltinVariable._call_setattr = scope["_call_setattr"]
