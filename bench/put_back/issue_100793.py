"""The gradient of `F.pad(mode="reflect")` with a negative pad is that of all elements, as if none had been cut off.

Mended by pull request 100923 (the range of the centre). Undone in torch/_decomp/decompositions.py,
`_reflection_pad_backward`: the centre is loaded from where its index is, whether it is in the gradient or not.
"""

import inspect

from torch._decomp import decompositions

CASE = """
import torch

BACKWARD = True


def model(x):
    return torch.nn.functional.pad(x, [-1, 0, 6, 6], mode="reflect")


def make():
    return model, (torch.ones(2, 3, 7, 2, requires_grad=True),)
"""
STAGES = ("decomposition",)
NAMES = ("aten.reflection_pad2d_backward", "reflection_pad2d_backward", "_reflection_pad_backward")

function = inspect.unwrap(decompositions._reflection_pad_backward)
source = inspect.getsource(function).replace(
    "aten._unsafe_masked_index(grad_output, cond, b + center, 0.0)", "aten._unsafe_index(grad_output, b + center)"
)
scope = {}
exec(compile(source[source.index("def ") :], function.__code__.co_filename, "exec"), vars(decompositions), scope)
function.__code__ = scope["_reflection_pad_backward"].__code__
