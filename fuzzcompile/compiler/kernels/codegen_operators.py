"""The operators that code is generated for, and where the compiler defines what generates it."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fuzzcompile.compiler.labels import source_of

if TYPE_CHECKING:
    import torch
    from torch._inductor.loop_body import LoopBody
    from torch._inductor.scheduler import BaseSchedulerNode

LoopNode: TypeAlias = "BaseSchedulerNode"

# What every loop has, and what only moves or names values; casts are tried last.
_PLAIN = frozenset(
    {"load", "store", "store_reduction", "constant", "get_index", "index_expr", "output", "check_bounds", "masked"}
)
_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "isinf", "isnan", "signbit")
_LAST = ("to_dtype", "identity")


def code_operators(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The operators of the loop that writes ``buffer``, each once; reductions as ``reduction:sum``.

    What computes comes first, casts last. Loads, stores and constants are left out.
    """
    names: dict[str, None] = {}
    for node in scheduled:
        # Beside the nodes of the scheduler, schedules hold markers of the code generator.
        for loop in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if buffer in [written.get_name() for written in loop.get_outputs()]:
                names.update(dict.fromkeys(_operators(getattr(loop, "_body", None))))
    return sorted(names, key=lambda name: (name in _LAST, name.startswith("indirect")))


def _operators(body: LoopBody | None) -> Iterator[str]:
    for block in [body.root_block, *body.subblocks.values()] if body is not None else ():
        for node in block.graph.nodes:
            if node.op != "call_method" or node.target in _PLAIN:
                continue
            if node.target == "reduction":
                yield f"reduction:{next((a for a in node.args[1:] if isinstance(a, str)), 'unknown')}"
            else:
                yield str(node.target)


def templates_of(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The names of the Triton templates that compute ``buffer``: ``mm``."""
    names = []
    for node in scheduled:
        for part in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if part.is_template() and buffer in [written.get_name() for written in part.get_outputs()]:
                # The function that writes the kernel is a method's closure; it holds the template as ``self``.
                made = inspect.getclosurevars(getattr(part.node, "make_kernel_render", templates_of)).nonlocals
                names.append(str(getattr(made.get("self"), "name", "unknown")))
    return names


def in_scalars(name: str, scalar: Callable[..., str]) -> Callable[..., str]:
    """The vectorised form of an operator of C++ code that computes each element by its ``scalar`` form.

    Inductor does the same for the operators that it has no vectors for. Those take arguments without dtypes, which
    arithmetic operators need.
    """
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp_utils import CppCSEVariable
    from torch.utils._sympy.value_ranges import ValueRanges

    dtypes: list[torch.dtype | None] = []

    def element(*args: object) -> str:
        known = iter(dtypes)
        typed = [
            CppCSEVariable(arg, ValueRanges.unknown(), next(known, None)) if isinstance(arg, str) else arg
            for arg in args
        ]
        return scalar(*typed)

    # Under this name the result is taken for a mask.
    element.__name__ = "isnan" if name in _COMPARES else name
    vectorised: Callable[..., str] = cpp.CppVecOverrides._scalarize(element)  # type: ignore[no-untyped-call]

    def function(*args: object) -> str:
        dtypes[:] = [arg.dtype for arg in args if isinstance(arg, CppCSEVariable)]
        return vectorised(*args)

    function.__name__ = name
    return function


def defined_at(place: str) -> tuple[str | None, int | None]:
    """File and line of a definition of the compiler, such as ``torch._inductor.codegen.cpp:CppVecOverrides.exp``.

    An attribute that a class inherits is found where its base defines it. Both are None where this torch has no such
    definition.
    """
    module, _, attributes = place.partition(":")
    try:
        target: object = importlib.import_module(module)
    except ImportError:
        return None, None
    for attribute in attributes.split("."):
        target = getattr(target, attribute, None)
    return source_of(_generating(target))


def _generating(function: Any) -> object:
    """The function that writes the code, behind the wrappers of the Triton code generator.

    ``TritonOverrides`` decorates with ``maybe_upcast_float32``, whose closure holds the function as ``func``, and
    ``TritonKernelOverrides`` routes float64 by partials that hold it as ``_original_impl``.
    """
    while True:
        if isinstance(function, functools.partial) and "_original_impl" in function.keywords:
            function = function.keywords["_original_impl"]
            continue
        code = getattr(function, "__code__", None)
        if code is None or code.co_name != "wrapped" or "func" not in code.co_freevars:
            return function
        function = function.__closure__[code.co_freevars.index("func")].cell_contents
