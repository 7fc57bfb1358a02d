"""Coverage of one compile beyond the rewrites: decompositions, lowerings, and shapes of fused kernels.

Watching costs three wrapped functions and a count for each call. Lowerings and kernels are reached only where code is
generated, so a screened compile shows decompositions alone.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from fuzzcompile.compiler.ledger import Ledger, Reached
from fuzzcompile.compiler.patching import Function
from fuzzcompile.stage_names import DECOMPOSITION, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
    from torch._ops import OpOverload

# Kernels of more equal nodes than this are counted as one shape for each power of two.
_EXACT = 4


# -- decompositions ---------------------------------------------------------------------------------


def wrap_decompositions(ledger: Ledger, original: Function) -> Function:
    """Have every decomposition that Inductor hands to AOTAutograd count its calls."""

    def select_decomp_table() -> object:
        table = cast("Mapping[OpOverload, Function]", original())
        _counting[:] = [weakref.ref(ledger)]
        return {operator: _counted(operator, function) for operator, function in table.items()}

    return select_decomp_table


# The ledger that decompositions are counted in: wrapping a thousand functions anew for every compile would show.
_counting: list[weakref.ref[Ledger]] = []
_wrapped: dict[OpOverload, tuple[Function, Function]] = {}


def _counted(operator: OpOverload, function: Function) -> Function:
    known = _wrapped.get(operator)
    if known is not None and known[0] is function:
        return known[1]
    reached = Reached(DECOMPOSITION, str(operator), "fired")

    def decompose(*args: object, **kwargs: object) -> object:
        result = function(*args, **kwargs)
        ledger = _counting[0]() if _counting and result is not NotImplemented else None
        if ledger is not None:
            ledger.reached[reached] += 1
        return result

    decompose.__name__ = getattr(function, "__name__", str(operator))
    _wrapped[operator] = function, decompose
    return decompose


# -- lowerings --------------------------------------------------------------------------------------


def wrap_lowering(ledger: Ledger, original: Function) -> Function:
    """Count lowerings, and calls of operators that have none."""

    def call_function(graph: GraphLowering, target: Function, args: object, kwargs: object) -> object:
        result = original(graph, target, args, kwargs)
        if _is_overload(target):
            from torch._inductor.lowering import lowerings

            fallback = getattr(lowerings.get(target), "_is_fallback_handler", False)
            ledger.reached[Reached(LOWERING, str(target), "fallback" if fallback else "fired")] += 1
        return result

    return call_function


def _is_overload(target: object) -> bool:
    return hasattr(target, "_schema") and hasattr(target, "_overloadname")


# -- kernels ----------------------------------------------------------------------------------------


def wrap_scheduler(ledger: Ledger, original: Function) -> Function:
    """Count the kernels of the scheduler's final list by their shapes."""

    def initialise(scheduler: Scheduler, *args: object, **kwargs: object) -> object:
        result = original(scheduler, *args, **kwargs)
        for shape in filter(None, map(kernel_shape, scheduler.nodes)):
            ledger.reached[Reached(SCHEDULER, shape, "fired")] += 1
        return result

    return initialise


def kernel_shape(node: BaseSchedulerNode) -> str:
    """Describe the computation of a node of the scheduler's final list, as ``Pointwise*2 + Reduction(sum)``.

    Numbers up to four are exact, and then powers of two (``Pointwise*8``: five to eight). Calls of libraries are
    ``extern(aten.mm)``, templates ``CppTemplateBuffer(CppGemmTemplate)``; what is no kernel is the empty string.
    """
    kind = type(node).__name__
    inner = list(node.get_nodes()) if hasattr(node, "get_nodes") else [node]
    if kind.startswith("ExternKernel"):
        if type(node.node).__name__ == "MultiOutput":  # takes one of several results of a kernel
            return ""
        name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
        return f"extern({str(name).removeprefix('torch.ops.').removeprefix('extern_kernels.')})"
    counts = Counter(_kind_of(part) for part in inner if not type(part).__name__.startswith("NopKernel"))
    parts = [name if count == 1 else f"{name}*{_rounded(count)}" for name, count in sorted(counts.items())]
    special = kind not in ("SchedulerNode", "FusedSchedulerNode")
    shape = " + ".join(parts)
    return f"{kind.removesuffix('SchedulerNode')}: {shape}" if special and shape else shape


def _kind_of(node: BaseSchedulerNode) -> str:
    data = getattr(getattr(node, "node", None), "data", None)
    if data is None:
        buffer = getattr(node, "node", node)
        template = getattr(buffer, "template", None)
        return f"{type(buffer).__name__}({type(template).__name__})" if template else type(buffer).__name__
    reduction = getattr(data, "reduction_type", None)
    return f"{type(data).__name__}({reduction})" if reduction else type(data).__name__


def _rounded(count: int) -> int:
    return count if count <= _EXACT else 1 << (count - 1).bit_length()
