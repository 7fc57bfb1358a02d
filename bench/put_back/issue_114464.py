"""A clone that is reshaped shares the memory of the input: the clone is dropped as if it did nothing.

Mended by pull request 116168 (no new aliases between inputs and views that are outputs). Undone in
torch/_inductor/fx_passes/post_grad.py, `remove_noop_ops`: only outputs themselves keep their clone.
"""

import inspect

from torch._inductor.fx_passes import post_grad

CASE = """
import torch


def fn(x):
    return x.clone().reshape(-1)


x = torch.arange(4.0).view(2, 2)
y = torch.compile(fn)(x)
y.add_(1)
print(x)
"""
STAGES = ("post_grad", "joint_graph")
NAMES = ("remove_noop_ops",)

function = inspect.unwrap(post_grad.remove_noop_ops)
source = inspect.getsource(function)
source = source.replace("node_storage in output_storages", "node in outputs")
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(post_grad), scope)
function.__code__ = scope["remove_noop_ops"].__code__
