"""What one compile reached beyond the rewrites: decompositions, lowerings, and shapes of fused kernels.

Watching costs three wrapped functions and a count for each call. Lowerings and kernels are reached only where code is
generated, so a screened compile shows decompositions alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fuzzcompile.compiler.ledger import Ledger, Reached

_COMPILE_FX = "torch._inductor.compile_fx"
_LOWERING = "torch._inductor.lowering"
# Kernels of more equal nodes than this are counted as one shape for each power of two.
_EXACT = 4


@contextlib.contextmanager
def reaching(ledger: Ledger) -> Iterator[None]:
    """Count in ``ledger.reached`` what every compile in this block reaches.

    What the installed torch has no place for is left out and noted in ``ledger.trouble``.
    """
    with contextlib.ExitStack() as stack:
        for module, attribute, wrap in _HOOKS:
            try:
                owner: Any = importlib.import_module(module)
                *path, leaf = attribute.split(".")
                for part in path:
                    owner = getattr(owner, part)
                original = getattr(owner, leaf)
            except (ImportError, AttributeError):
                ledger.trouble.append(f"coverage: this torch has no {module}.{attribute}")
                continue
            setattr(owner, leaf, functools.wraps(original)(wrap(ledger, original)))
            stack.callback(setattr, owner, leaf, original)
        stack.callback(_counting.clear)
        yield


# -- decompositions ---------------------------------------------------------------------------------


def _wrap_table(ledger: Ledger, original: Callable[..., Any]) -> Callable[..., Any]:
    def select_decomp_table() -> Any:
        _counting[:] = [ledger]
        return {operator: _counted(operator, function) for operator, function in original().items()}

    return select_decomp_table


# The ledger that decompositions are counted in: wrapping a thousand functions anew for every compile would show.
_counting: list[Ledger] = []
_wrapped: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _counted(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    known = _wrapped.get(operator)
    if known is not None and known[0] is function:
        return known[1]
    reached = Reached("decomposition", str(operator), "fired")

    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if result is not NotImplemented:
            for ledger in _counting:
                ledger.reached[reached] += 1
        return result

    decompose.__name__ = getattr(function, "__name__", str(operator))
    _wrapped[operator] = function, decompose
    return decompose


# -- lowerings --------------------------------------------------------------------------------------


def _wrap_call_function(ledger: Ledger, original: Callable[..., Any]) -> Callable[..., Any]:
    handlers = getattr(importlib.import_module(_LOWERING), "lowerings", {})

    def call_function(graph: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result = original(graph, target, args, kwargs)
        if _is_overload(target):
            fallback = getattr(handlers.get(target), "_is_fallback_handler", False)
            ledger.reached[Reached("lowering", str(target), "fallback" if fallback else "fired")] += 1
        return result

    return call_function


def _is_overload(target: object) -> bool:
    return hasattr(target, "_schema") and hasattr(target, "_overloadname")


# -- kernels ----------------------------------------------------------------------------------------


def _wrap_scheduler(ledger: Ledger, original: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, *args, **kwargs)
        try:
            for node in scheduler.nodes:
                shape = kernel_shape(node)
                if shape:
                    ledger.reached[Reached("scheduler", shape, "fired")] += 1
        except Exception as error:  # the compile goes on
            ledger.trouble.append(f"coverage: {type(error).__name__}: {error}"[:300])
        return result

    return initialise


def kernel_shape(node: Any) -> str:
    """What a node of the scheduler's final list computes, as ``Pointwise*2 + Reduction(sum)``.

    Numbers up to four are exact, and then powers of two (``Pointwise*8``: five to eight). Calls of libraries are
    ``extern(aten.mm)``; what is no kernel is the empty string.
    """
    kind = type(node).__name__
    inner = list(node.get_nodes()) if hasattr(node, "get_nodes") else [node]
    if kind.startswith("ExternKernel"):
        if type(node.node).__name__ == "MultiOutput":  # picks one of the results of another
            return ""
        name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
        return f"extern({str(name).removeprefix('torch.ops.').removeprefix('extern_kernels.')})"
    counts = Counter(_kind_of(one) for one in inner if not type(one).__name__.startswith("NopKernel"))
    parts = [name if count == 1 else f"{name}*{_rounded(count)}" for name, count in sorted(counts.items())]
    special = kind not in ("SchedulerNode", "FusedSchedulerNode")
    shape = " + ".join(parts)
    return f"{kind.removesuffix('SchedulerNode')}: {shape}" if special and shape else shape


def _kind_of(node: Any) -> str:
    data = getattr(getattr(node, "node", None), "data", None)
    if data is None:
        return type(getattr(node, "node", node)).__name__
    reduction = getattr(data, "reduction_type", None)
    return f"{type(data).__name__}({reduction})" if reduction else type(data).__name__


def _rounded(count: int) -> int:
    return count if count <= _EXACT else 1 << (count - 1).bit_length()


_HOOKS: Sequence[tuple[str, str, Callable[[Ledger, Callable[..., Any]], Callable[..., Any]]]] = (
    (_COMPILE_FX, "select_decomp_table", _wrap_table),
    ("torch._inductor.graph", "GraphLowering.call_function", _wrap_call_function),
    ("torch._inductor.scheduler", "Scheduler.__init__", _wrap_scheduler),
)
