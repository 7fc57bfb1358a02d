"""Whether the loops that one kernel computes may be computed together, as far as their memory tells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from fuzzcompile.compiler.kernels.loop_indices import Indices
from fuzzcompile.compiler.kernels.loops import LARGEST_SPACE, NotEvaluable
from fuzzcompile.compiler.kernels.lowered import Lowered

# "broken": one loop touches an element that another writes in another iteration; "kept": none does;
# "unknown": their iterations cannot be compared.
Dependences = Literal["broken", "kept", "unknown"]


def dependences(lowered: Lowered, scheduled: Sequence[Any]) -> Dependences:
    """Whether fused loops keep their dependences, from the elements that each reads and writes in an iteration."""
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    unknown = False
    for one, other in _together(lowered, scheduled):
        for first, second in _touching(one, other, renamed):
            crossed = _crossed(first, second)
            if crossed:
                return "broken"
            unknown = unknown or crossed is None
    return "unknown" if unknown else "kept"


def _crossed(one: Any, other: Any) -> bool | None:
    """Whether two accesses meet at an element in different iterations; None where that cannot be said."""
    try:
        if one.index == other.index and one.var_names == other.var_names and one.size == other.size:
            return False
        count = math.prod(one.size)
        if count != math.prod(other.size) or count > LARGEST_SPACE:
            return None
        places = [_places(access) for access in (one, other)]
    except (AttributeError, KeyError, NotEvaluable, RuntimeError, TypeError, ValueError):
        return None
    shared = torch.isin(places[0], places[1])
    return bool((shared & (places[0] != places[1])).any())


def _places(access: Any) -> torch.Tensor:
    """Where an access stands in its buffer, for each iteration in order."""
    from torch.utils._sympy.interp import sympy_interp

    sizes = [int(size) for size in access.size]
    counters = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij") if sizes else ()
    place = torch.as_tensor(sympy_interp(Indices, dict(zip(access.var_names, counters, strict=True)), access.index))
    return place.expand(sizes).reshape(-1)


def _together(lowered: Lowered, scheduled: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a kernel's loops that are one loop nest; nests that share their outer loops only are passed over."""
    inside = {id(one) for node in scheduled for one in (node.get_nodes() if hasattr(node, "get_nodes") else ())}
    for nest in getattr(lowered.scheduler, "nodes", ()):
        if type(nest).__name__ == "FusedSchedulerNode":
            yield from itertools.combinations([one for one in nest.get_nodes() if id(one) in inside], 2)


def _touching(one: Any, other: Any, renamed: dict[str, str]) -> Iterator[tuple[Any, Any]]:
    """Pairs of accesses of two loops to one buffer of which at least one writes."""
    reads, writes = ([_accesses(node, kind, renamed) for node in (one, other)] for kind in ("reads", "writes"))
    for first, second in ((reads[0], writes[1]), (writes[0], reads[1]), (writes[0], writes[1])):
        for (name, access), (other_name, other_access) in itertools.product(first, second):
            if name == other_name:
                yield access, other_access


def _accesses(node: Any, kind: str, renamed: dict[str, str]) -> list[tuple[str, Any]]:
    """What a loop reads or writes, with its buffer; what only keeps loops in order is no access."""
    found = getattr(getattr(node, "read_writes", None), kind, ())
    named = [(str(getattr(one, "name", "")), one) for one in found if type(one).__name__ in ("MemoryDep", "StarDep")]
    return [(renamed.get(name, name), one) for name, one in named]
