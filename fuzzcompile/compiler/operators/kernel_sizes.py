"""The size of a dimension for which a kernel of eager mode is wrong: on the same values in other sizes it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.operator_application import Arguments
from fuzzcompile.compiler.operators.second_reference import NO_ANSWER, ContestedCall, find_opinion

# Opinions that are the kernel's own elsewhere, which say nothing of its sizes.
_OWN = ("contiguous", "differences", "float64", "surroundings")
# Sizes of one call that are tried, the largest first.
_MOST_SIZES = 4
Change: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class WrongSize:
    """The ``size`` of a dimension with which a kernel is wrong, and those with which it is ``right``."""

    size: int
    right: list[int]


def find_wrong_size(call: ContestedCall) -> WrongSize | None:
    """The size with which a kernel is wrong; None where it is wrong with others too, or cannot be called with them.

    All dimensions of one size, in every tensor, are made one longer, which repeats a value or adds a 1 to none, or are
    cut into halves, both of which must be right: all values are still there, so that it is not for them that the
    kernel is wrong.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(call.arguments) if isinstance(leaf, torch.Tensor)]
    if call.opinion.by in _OWN or not isinstance(call.operator, torch._ops.OpOverload):
        return None
    for size in sorted({size for tensor in tensors for size in tensor.shape}, reverse=True)[:_MOST_SIZES]:
        if _is_right(call, size, [_lengthen]):
            return WrongSize(size, [size + 1])
        half = size // 2
        if half and _is_right(call, size, [_keep(0, half), _keep(half, size)]):
            return WrongSize(size, sorted({half, size - half}))
    return None


def _is_right(call: ContestedCall, size: int, changes: Iterable[Change]) -> bool:
    """Return whether the kernel agrees with the other opinion once all dimensions of a size are changed."""

    def change_all(change: Change) -> Arguments:
        def apply(tensor: torch.Tensor) -> torch.Tensor:
            for dim in (dim for dim, length in enumerate(tensor.shape) if length == size):
                tensor = change(tensor, dim)
            return tensor.clone()

        changed: Arguments = pytree.tree_map_only(torch.Tensor, apply, call.arguments)
        return changed

    try:
        opinions = [find_opinion(call.operator, change_all(change)) for change in changes]
    except NO_ANSWER:
        return False  # another argument gives the size
    return all(opinion is None for opinion in opinions)


def _lengthen(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    sizes = list(tensor.shape)
    sizes[dim] = 1
    more = tensor.narrow(dim, 0, 1) if tensor.shape[dim] else tensor.new_ones(sizes)
    return torch.cat((tensor, more), dim)


def _keep(start: int, stop: int) -> Change:
    return lambda tensor, dim: tensor.narrow(dim, start, stop - start)
