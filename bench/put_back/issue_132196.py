"""A custom operator that writes to two new tensors writes both results to one, which the graph had made of the two.

Mended by pull request 132238 (of arguments that are one tensor, one alone is written in place). Undone in
torch/_inductor/fx_passes/reinplace.py, `reinplace_inplaceable_ops_core`. The report's operator is a Triton kernel.
"""

import inspect

from torch._inductor.fx_passes import reinplace

CASE = """
import torch


@torch.library.custom_op("put_back::add_both", mutates_args={"first", "second"})
def add_both(x: torch.Tensor, y: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    first.copy_(x.detach() + y)
    second.copy_(x.detach() + y + 1)


def f(x, y):
    first = torch.zeros(3)
    second = torch.zeros(3)
    add_both(x, y, first, second)
    return first, second, x.sin()


torch.manual_seed(0)
print(torch.compile(f, fullgraph=True)(torch.randn(3, requires_grad=True), torch.randn(3)))
"""
STAGES = ("post_grad",)
NAMES = ("reinplace_inplaceable_ops", "reinplace")

source = inspect.getsource(reinplace.reinplace_inplaceable_ops_core)
start = source.index("should_attempt_reinplace = not tensor_with_same_storage_already_reinplaced(")
end = source.index("if should_attempt_reinplace and can_inplace")
source = source[:start] + "should_attempt_reinplace = True\n            " + source[end:]
exec(compile(source, reinplace.__file__, "exec"), vars(reinplace))
