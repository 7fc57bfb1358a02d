"""Loops of one kernel: their operators, the code generated for them, and the dependences between them."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsInt, TypeAlias, cast

import torch

from fuzzcompile.compiler.kernels.loop_body import LARGEST_SPACE, IndexOperators, NotEvaluable
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph
from fuzzcompile.compiler.watch.rule_labels import find_source

if TYPE_CHECKING:
    from torch._inductor.loop_body import LoopBody
    from torch._inductor.scheduler import BaseSchedulerNode


LoopNode: TypeAlias = "BaseSchedulerNode"

# What every loop has, and what only moves or names values; casts are tried last.
_PLAIN = frozenset(
    {"load", "store", "store_reduction", "constant", "get_index", "index_expr", "output", "check_bounds", "masked"}
)
_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "isinf", "isnan", "signbit")
_LAST = ("to_dtype", "identity")


def list_code_operators(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The operators of the loop that writes ``buffer``, each once; reductions as ``reduction:sum``.

    What computes comes first, casts last. Loads, stores and constants are left out.
    """
    names: dict[str, None] = {}
    for node in scheduled:
        # Beside the nodes of the scheduler, schedules hold markers of the code generator.
        for loop in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if buffer in [written.get_name() for written in loop.get_outputs()]:
                names.update(dict.fromkeys(_iterate_operators(getattr(loop, "_body", None))))
    return sorted(names, key=lambda name: (name in _LAST, name.startswith("indirect")))


def _iterate_operators(body: LoopBody | None) -> Iterator[str]:
    for block in [body.root_block, *body.subblocks.values()] if body is not None else ():
        for node in block.graph.nodes:
            if node.op != "call_method" or node.target in _PLAIN:
                continue
            if node.target == "reduction":
                yield f"reduction:{next((a for a in node.args[1:] if isinstance(a, str)), 'unknown')}"
            else:
                yield str(node.target)


def list_templates(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The names of the Triton templates that compute ``buffer``: ``mm``."""
    names = []
    for node in scheduled:
        for part in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if part.is_template() and buffer in [written.get_name() for written in part.get_outputs()]:
                # The function that writes the kernel is a method's closure; it holds the template as ``self``.
                made = inspect.getclosurevars(getattr(part.node, "make_kernel_render", list_templates)).nonlocals
                names.append(str(getattr(made.get("self"), "name", "unknown")))
    return names


def compute_in_scalars(name: str, scalar: Callable[..., str]) -> Callable[..., str]:
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


def find_definition(place: str) -> tuple[str | None, int | None]:
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
    return find_source(_unwrap_generator(target))


def _unwrap_generator(function: Any) -> object:
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


# The loops of a kernel that write one buffer: their operators, in loops and in the graph.

REDUCTION = "reduction"


def list_loop_operators(kernel: Kernel, buffer: str) -> list[str]:
    """The operators of the loop that writes a buffer, as Inductor calls them; :data:`REDUCTION` if it reduces."""
    names = list_code_operators(kernel.scheduled, buffer)
    reduces = any(loop.is_reduction() for loop in _iterate_loops(kernel) if buffer in _list_written(loop))
    return [*names, *([REDUCTION] if reduces else [])]


def list_operators_behind(kernel: Kernel, buffer: str, known: Collection[str]) -> list[str]:
    """As :func:`list_loop_operators`, with the loops of the kernel that it reads, up to ``known`` buffers."""
    names: list[str] = []
    waiting, done = [buffer], set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        names += list_loop_operators(kernel, name)
        reads = {read for loop in _iterate_loops(kernel) if name in _list_written(loop) for read in _list_read(loop)}
        waiting += sorted(reads - done - set(known))
    return names


def find_loop_nodes(kernel: Kernel, buffer: str) -> set[str]:
    """Names of the FX nodes behind the loop that writes a buffer."""
    loops = [loop for loop in _iterate_loops(kernel) if buffer in _list_written(loop)]
    return {origin.name for loop in loops for origin in getattr(loop.node, "origins", ())}


def _iterate_loops(kernel: Kernel) -> Iterator[BaseSchedulerNode]:
    for node in kernel.scheduled:
        yield from node.get_nodes() if hasattr(node, "get_nodes") else ()


def _list_written(loop: BaseSchedulerNode) -> list[str]:
    return [buffer.get_name() for buffer in loop.get_outputs()]


def _list_read(loop: BaseSchedulerNode) -> list[str]:
    return [str(dependence.name) for dependence in loop.read_writes.reads]


# Dependences between the loops of one kernel, judged by the memory that they access.

# "broken": one loop touches an element that another writes in another iteration; "kept": none does;
# "unknown": their iterations cannot be compared.
Dependences = Literal["broken", "kept", "unknown"]


class _Access(Protocol):
    """A read or a write of a loop: an index expression over the loop's variables."""

    index: object
    var_names: Sequence[object]
    size: Sequence[SupportsInt]


def check_dependences(lowered: LoweredGraph, scheduled: Sequence[BaseSchedulerNode]) -> Dependences:
    """Judge from the elements that fused loops read and write in an iteration whether they keep their dependences."""
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    unknown = False
    for before, after in _pair_loops(lowered, scheduled):
        for first, second in _pair_accesses(before, after, renamed):
            crossed = _is_crossed(first, second)
            if crossed:
                return "broken"
            unknown = unknown or crossed is None
    return "unknown" if unknown else "kept"


def _is_crossed(first: _Access, second: _Access) -> bool | None:
    """Return whether two accesses meet at an element in different iterations; None where this is not decidable."""
    try:
        if (first.index, first.var_names, first.size) == (second.index, second.var_names, second.size):
            return False
        counts = [math.prod(int(size) for size in access.size) for access in (first, second)]
        outer = min(counts)
        if not outer or max(counts) % outer or max(counts) > LARGEST_SPACE:
            return None
        # The loops that a reduction shares come first; what they enclose belongs to one iteration of them.
        fewer, more = sorted(
            (_compute_places(access).reshape(outer, -1) for access in (first, second)), key=torch.numel
        )
    except (AttributeError, KeyError, NotEvaluable, RuntimeError, TypeError, ValueError):
        return None
    crossed = bool((torch.isin(more, fewer) & (more != fewer)).any())
    return None if crossed and counts[0] != counts[1] else crossed  # unless the shared loops were not the first


def _compute_places(access: _Access) -> torch.Tensor:
    """Return the positions of an access in its buffer, for each iteration in order."""
    from torch.utils._sympy.interp import sympy_interp

    sizes = [int(size) for size in access.size]
    counters = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij") if sizes else ()
    place = torch.as_tensor(
        sympy_interp(IndexOperators, dict(zip(access.var_names, counters, strict=True)), access.index)
    )
    return place.expand(sizes).reshape(-1)


def _pair_loops(
    lowered: LoweredGraph, scheduled: Sequence[BaseSchedulerNode]
) -> Iterator[tuple[BaseSchedulerNode, BaseSchedulerNode]]:
    """Pairs of a kernel's loops that are one loop nest; nests that share their outer loops only are passed over."""
    inside = {id(loop) for node in scheduled for loop in (node.get_nodes() if hasattr(node, "get_nodes") else ())}
    for nest in getattr(lowered.scheduler, "nodes", ()):
        if type(nest).__name__ == "FusedSchedulerNode":
            yield from itertools.combinations([loop for loop in nest.get_nodes() if id(loop) in inside], 2)


def _pair_accesses(
    before: BaseSchedulerNode, after: BaseSchedulerNode, renamed: Mapping[str, str]
) -> Iterator[tuple[_Access, _Access]]:
    """Pairs of accesses of two loops to one buffer of which at least one writes."""
    reads, writes = ([_list_accesses(node, kind, renamed) for node in (before, after)] for kind in ("reads", "writes"))
    for left, right in ((reads[0], writes[1]), (writes[0], reads[1]), (writes[0], writes[1])):
        for (left_buffer, first), (right_buffer, second) in itertools.product(left, right):
            if left_buffer == right_buffer:
                yield first, second


def _list_accesses(node: BaseSchedulerNode, kind: str, renamed: Mapping[str, str]) -> list[tuple[str, _Access]]:
    """Return the reads or the writes of a loop, each with its buffer; pure ordering dependences are left out."""
    dependences = getattr(getattr(node, "read_writes", None), kind, ())
    accesses = [access for access in dependences if type(access).__name__ in ("MemoryDep", "StarDep")]
    names = [str(getattr(access, "name", "")) for access in accesses]
    return [(renamed.get(name, name), cast("_Access", access)) for name, access in zip(names, accesses, strict=True)]
