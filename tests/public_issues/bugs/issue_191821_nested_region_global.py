"""pytorch#191821: a nested compile region reads the global that the first iteration had set.

At fault: dynamo, nested_compile_region (reuse of the first trace)
"""

import torch


from dataclasses import dataclass

EXPECT = ("miscompile",)


@dataclass
class RegionInput:
    hidden: torch.Tensor


region_input = RegionInput(torch.tensor(0))


@torch.compiler.nested_compile_region
def region():
    return region_input.hidden + 1


def fn(hidden):
    global region_input
    for _ in range(2):
        region_input = RegionInput(hidden)
        hidden = region()
    return hidden


hidden = torch.tensor(0)
expected = fn(hidden)
actual = torch.compile(fn, backend="eager", fullgraph=True)(hidden)

print(f"expected: {expected}")
print(f"actual:   {actual}")
