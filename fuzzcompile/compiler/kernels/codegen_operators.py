"""The operators that code is generated for, and where their generators are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzzcompile.compiler.labels import source_of

# What every loop has, and what only moves or names values; casts are tried last.
_PLAIN = frozenset(
    {"load", "store", "store_reduction", "constant", "get_index", "index_expr", "output", "check_bounds", "masked"}
)
_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "isinf", "isnan", "signbit")
# What is written for a loop as such.
LOOPS = ("loop", "load")
_LAST = ("to_dtype", "identity")


def code_operators(scheduled: Sequence[Any], buffer: str) -> list[str]:
    """The operators of the loop that writes ``buffer``, each once; reductions as ``reduction:sum``.

    What computes comes first, casts last. Loads, stores and constants are left out.
    """
    found: dict[str, None] = {}
    for node in scheduled:
        for one in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if buffer in [written.get_name() for written in one.get_outputs()]:
                found.update(dict.fromkeys(_operators(getattr(one, "_body", None))))
    return sorted(found, key=lambda name: (name in _LAST, name.startswith("indirect")))


def _operators(body: Any) -> list[str]:
    names: list[str] = []
    if body is None:
        return names
    blocks = [body.root_block, *body.subblocks.values()]
    for block in blocks:
        for node in block.graph.nodes:
            if node.op != "call_method" or node.target in _PLAIN:
                continue
            if node.target == "reduction":
                names.append(f"reduction:{next((a for a in node.args[1:] if isinstance(a, str)), 'unknown')}")
            else:
                names.append(str(node.target))
    return names


def is_vectorised(source: str) -> bool:
    """Whether a kernel's generated C++ uses vectors."""
    return "at::vec::" in source


def in_scalars(name: str, scalar: Callable[..., Any]) -> Callable[..., Any]:
    """The vectorised form of an operator that computes each element by its ``scalar`` form.

    As Inductor does it for the operators that it has no vectors for; these know no dtypes of their arguments, which
    the arithmetic ones ask for.
    """
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp_utils import CppCSEVariable
    from torch.utils._sympy.value_ranges import ValueRanges

    dtypes: list[Any] = []

    def element(*args: Any) -> Any:
        known = iter(dtypes)
        typed = [
            CppCSEVariable(arg, ValueRanges.unknown(), next(known, None)) if isinstance(arg, str) else arg
            for arg in args
        ]
        return scalar(*typed)

    # Under this name the result is taken for a mask.
    element.__name__ = "isnan" if name in _COMPARES else name
    vectorised = cpp.CppVecOverrides._scalarize(element)  # type: ignore[no-untyped-call]

    def function(*args: Any) -> Any:
        dtypes[:] = [arg.dtype for arg in args if isinstance(arg, CppCSEVariable)]
        return vectorised(*args)

    function.__name__ = name
    return function


def code_source(operator: str, *, vectorised: bool = False) -> tuple[str | None, int | None]:
    """File and line of what generates the code of an operator, of a ``reduction:…``, a ``loop``, ``fused loops``.

    A ``fusion`` is the decision of the scheduler.
    """
    from torch._inductor import scheduler
    from torch._inductor.codegen import cpp

    if operator == "fusion":
        return source_of(scheduler.Scheduler.can_fuse)
    if operator == "fused loops":
        return source_of(getattr(cpp.CppKernelProxy, "codegen_functions", cpp.CppKernelProxy.codegen_nodes))
    kernel = cpp.CppVecKernel if vectorised else cpp.CppKernel
    if operator.startswith("reduction:"):
        return source_of(kernel.reduction)
    if operator in LOOPS:
        return source_of(kernel.load)
    owner = cpp.CppVecOverrides if vectorised else cpp.CppOverrides
    return source_of(getattr(owner, operator, None))
