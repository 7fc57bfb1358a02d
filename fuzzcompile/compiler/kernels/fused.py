"""Dependences between the loops of one kernel, judged by the memory that they access."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, SupportsInt, cast

import torch

from fuzzcompile.compiler.kernels.loop_indices import Indices
from fuzzcompile.compiler.kernels.loops import LARGEST_SPACE, NotEvaluable
from fuzzcompile.compiler.kernels.lowered import Lowered

if TYPE_CHECKING:
    from torch._inductor.scheduler import BaseSchedulerNode

# "broken": one loop touches an element that another writes in another iteration; "kept": none does;
# "unknown": their iterations cannot be compared.
Dependences = Literal["broken", "kept", "unknown"]


class _Access(Protocol):
    """A read or a write of a loop: an index expression over the loop's variables."""

    index: object
    var_names: Sequence[object]
    size: Sequence[SupportsInt]


def dependences(lowered: Lowered, scheduled: Sequence[BaseSchedulerNode]) -> Dependences:
    """Judge from the elements that fused loops read and write in an iteration whether they keep their dependences."""
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    unknown = False
    for before, after in _together(lowered, scheduled):
        for first, second in _touching(before, after, renamed):
            crossed = _crossed(first, second)
            if crossed:
                return "broken"
            unknown = unknown or crossed is None
    return "unknown" if unknown else "kept"


def _crossed(first: _Access, second: _Access) -> bool | None:
    """Return whether two accesses meet at an element in different iterations; None where this is not decidable."""
    try:
        if (first.index, first.var_names, first.size) == (second.index, second.var_names, second.size):
            return False
        counts = [math.prod(int(size) for size in access.size) for access in (first, second)]
        outer = min(counts)
        if not outer or max(counts) % outer or max(counts) > LARGEST_SPACE:
            return None
        # The loops that a reduction shares come first; what they enclose belongs to one iteration of them.
        fewer, more = sorted((_places(access).reshape(outer, -1) for access in (first, second)), key=torch.numel)
    except (AttributeError, KeyError, NotEvaluable, RuntimeError, TypeError, ValueError):
        return None
    crossed = bool((torch.isin(more, fewer) & (more != fewer)).any())
    return None if crossed and counts[0] != counts[1] else crossed  # unless the shared loops were not the first


def _places(access: _Access) -> torch.Tensor:
    """Return the positions of an access in its buffer, for each iteration in order."""
    from torch.utils._sympy.interp import sympy_interp

    sizes = [int(size) for size in access.size]
    counters = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij") if sizes else ()
    place = torch.as_tensor(sympy_interp(Indices, dict(zip(access.var_names, counters, strict=True)), access.index))
    return place.expand(sizes).reshape(-1)


def _together(
    lowered: Lowered, scheduled: Sequence[BaseSchedulerNode]
) -> Iterator[tuple[BaseSchedulerNode, BaseSchedulerNode]]:
    """Pairs of a kernel's loops that are one loop nest; nests that share their outer loops only are passed over."""
    inside = {id(loop) for node in scheduled for loop in (node.get_nodes() if hasattr(node, "get_nodes") else ())}
    for nest in getattr(lowered.scheduler, "nodes", ()):
        if type(nest).__name__ == "FusedSchedulerNode":
            yield from itertools.combinations([loop for loop in nest.get_nodes() if id(loop) in inside], 2)


def _touching(
    before: BaseSchedulerNode, after: BaseSchedulerNode, renamed: Mapping[str, str]
) -> Iterator[tuple[_Access, _Access]]:
    """Pairs of accesses of two loops to one buffer of which at least one writes."""
    reads, writes = ([_accesses(node, kind, renamed) for node in (before, after)] for kind in ("reads", "writes"))
    for left, right in ((reads[0], writes[1]), (writes[0], reads[1]), (writes[0], writes[1])):
        for (left_buffer, first), (right_buffer, second) in itertools.product(left, right):
            if left_buffer == right_buffer:
                yield first, second


def _accesses(node: BaseSchedulerNode, kind: str, renamed: Mapping[str, str]) -> list[tuple[str, _Access]]:
    """Return the reads or the writes of a loop, each with its buffer; pure ordering dependences are left out."""
    dependences = getattr(getattr(node, "read_writes", None), kind, ())
    accesses = [access for access in dependences if type(access).__name__ in ("MemoryDep", "StarDep")]
    names = [str(getattr(access, "name", "")) for access in accesses]
    return [(renamed.get(name, name), cast("_Access", access)) for name, access in zip(names, accesses, strict=True)]
