"""An in-place update of an input that is a view with gaps and requires gradients writes to other elements of its base.

Mended by pull request 102767 (a copy's other strides are no change of the input's strides). Undone in
torch/_functorch/_aot_autograd/functional_utils.py, `has_metadata_mutation`: they are, and the input is given them.
"""

import inspect

from torch._functorch._aot_autograd import functional_utils

CASE = """
import torch


@torch.compile(backend="aot_eager")
def foo(a):
    a.add_(1.0)


base = torch.ones([4], requires_grad=True).add(0.0)
view = base[0::2]
foo(view)
print(base)
"""
STAGES = ("functionalization",)
NAMES = ("run_functionalized_fw_and_collect_metadata", "add_", "aten.add", "add", "copy_", "aten.copy_")

function = inspect.unwrap(functional_utils.has_metadata_mutation)
source = inspect.getsource(function)
source = source.replace(
    "        if not maybe_metadata_mutated:\n            return False\n", "        maybe_metadata_mutated = True\n"
)
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(functional_utils), scope)
function.__code__ = scope["has_metadata_mutation"].__code__
