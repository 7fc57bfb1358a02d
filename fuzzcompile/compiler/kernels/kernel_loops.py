"""Loops of one kernel: their operators, the code generated for them, and the dependences between them."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from fuzzcompile.compiler.kernels.loop_body import LARGEST_SPACE, IndexOperators, NotEvaluable
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.run.tensors import name_collective

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


def _iterate_loops(scheduled: Sequence[LoopNode], buffer: str) -> Iterator[LoopNode]:
    """The loops that write a buffer; beside the scheduler's nodes, schedules hold markers of the code generator."""
    for node in scheduled:
        for loop in node.get_nodes() if hasattr(node, "get_nodes") else ():
            if buffer in [written.get_name() for written in loop.get_outputs()]:
                yield loop


def list_code_operators(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The operators of the loop that writes ``buffer``, what computes first; ``reduction:sum``; no loads."""
    names: dict[str, None] = {}
    for loop in _iterate_loops(scheduled, buffer):
        body: LoopBody | None = getattr(loop, "_body", None)
        for block in [body.root_block, *body.subblocks.values()] if body is not None else ():
            for node in block.graph.nodes:
                if node.op == "call_method" and node.target == "reduction":
                    kind = next((each for each in node.args[1:] if isinstance(each, str)), "unknown")
                    names[f"reduction:{kind}"] = None
                elif node.op == "call_method" and node.target not in _PLAIN:
                    names[str(node.target)] = None
    return sorted(names, key=lambda name: (name in _LAST, name.startswith("indirect")))


def list_templates(scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
    """The names of the Triton templates that compute ``buffer``: ``mm``."""
    # The function that writes the kernel is a method's closure; it holds the template as ``self``.
    parts = [part for part in _iterate_loops(scheduled, buffer) if part.is_template()]
    renders = [getattr(part.node, "make_kernel_render", None) for part in parts]
    made = [inspect.getclosurevars(render).nonlocals if render is not None else {} for render in renders]
    return [str(getattr(known.get("self"), "name", "unknown")) for known in made]


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
        return _write_in_line(scalar, typed)

    # Under this name the result is taken for a mask.
    element.__name__ = "isnan" if name in _COMPARES else name
    vectorised: Callable[..., str] = cpp.CppVecOverrides._scalarize(element)  # type: ignore[no-untyped-call]

    def function(*args: object) -> str:
        dtypes[:] = [arg.dtype for arg in args if isinstance(arg, CppCSEVariable)]
        return vectorised(*args)

    function.__name__ = name
    return function


def _write_in_line(scalar: Callable[..., object], arguments: Sequence[object]) -> str:
    """The text of an operator of C++ code; what it is composed of stands in it, not in variables before the loop."""
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.cpp_utils import CppCSEVariable
    from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
    from torch._inductor.ops_handler import DefaultHandler
    from torch._inductor.virtualized import OpsValue, V
    from torch.utils._sympy.value_ranges import ValueRanges

    results = DtypePropagationOpsHandler()

    class InLine(DefaultHandler):
        def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            text = getattr(cpp.CppOverrides, name)(*args, **kwargs)
            return CppCSEVariable(f"({text})", ValueRanges.unknown(), getattr(results, name)(*args, **kwargs))

    with V.set_ops_handler(InLine()):
        written = scalar(*arguments)
    return str(written.value if isinstance(written, OpsValue) else written)


def find_definition(place: str) -> tuple[str | None, int | None]:
    """File and line of ``torch._inductor.codegen.cpp:CppVecOverrides.exp``, or where a base defines it."""
    module, _, attributes = place.partition(":")
    try:
        target: object = importlib.import_module(module)
    except ImportError:
        return None, None
    for attribute in attributes.split("."):
        target = getattr(target, attribute, None)
    return find_source(target)


def list_loop_operators(kernel: Kernel, buffer: str) -> list[str]:
    """The operators of the loop that writes a buffer, as Inductor calls them; ``reduction`` if it reduces."""
    reduces = any(loop.is_reduction() for loop in _iterate_loops(kernel.scheduled, buffer))
    return [*list_code_operators(kernel.scheduled, buffer), *(["reduction"] if reduces else [])]


def list_operators_behind(kernel: Kernel, buffer: str, known: Collection[str]) -> list[str]:
    """As :func:`list_loop_operators`, with the loops of the kernel that it reads, up to ``known`` buffers."""
    names: list[str] = []
    waiting, done = [buffer], set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        names += list_loop_operators(kernel, name)
        loops = _iterate_loops(kernel.scheduled, name)
        reads = {str(dependence.name) for loop in loops for dependence in loop.read_writes.reads}
        waiting += sorted(reads - done - set(known))
    return names


def find_loop_nodes(kernel: Kernel, buffer: str) -> set[str]:
    """Names of the FX nodes behind the loop that writes a buffer."""
    loops = _iterate_loops(kernel.scheduled, buffer)
    return {origin.name for loop in loops for origin in getattr(loop.node, "origins", ())}


# Dependences between the loops of one kernel, judged by the memory that they access.

# "broken": one loop touches an element that another writes in another iteration; "kept": none does;
# "unknown": their iterations cannot be compared.
Dependences = Literal["broken", "kept", "unknown"]


def check_dependences(lowered: LoweredGraph, scheduled: Sequence[LoopNode]) -> Dependences:
    """Judge from the elements that fused loops read and write in an iteration whether they keep their dependences."""
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    unknown = False
    for first, second in _iterate_accesses(lowered, scheduled, renamed):
        crossed = _is_crossed(first, second)
        if crossed:
            return "broken"
        unknown = unknown or crossed is None
    return "unknown" if unknown else "kept"


def reads_what_it_writes(lowered: LoweredGraph, scheduled: Sequence[LoopNode]) -> bool:
    """Return whether a single loop reads an element of a buffer that it may write in another iteration.

    It may wherever the data decide which elements it reads or writes.
    """
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    loops = [loop for node in scheduled if hasattr(node, "get_nodes") for loop in node.get_nodes()]
    pairs = (
        (first, second)
        for loop in loops
        for (left, first), (right, second) in itertools.product(
            _list_accesses(loop, "reads", renamed), _list_accesses(loop, "writes", renamed)
        )
        if left == right
    )
    return any(_is_decided_by_data(first, second) or _is_crossed(first, second) for first, second in pairs)


def find_collective(kernel: Kernel) -> str | None:
    """The name of the collective operator that a kernel is the call of; None for other kernels."""
    called = (getattr(getattr(node, "node", None), "op_overload", None) for node in kernel.scheduled)
    return next(filter(None, map(name_collective, called)), None)


def find_early_read(lowered: LoweredGraph) -> Kernel | None:
    """The first kernel that reads what a later one writes, or what a collective gives and is not waited for yet."""
    renamed = getattr(lowered.scheduler, "mutation_real_name", {})
    loops = [(kernel, loop) for kernel in lowered.kernels for node in kernel.scheduled for loop in node.get_nodes()]
    writer = {buffer.get_name(): kernel.number for kernel, loop in loops for buffer in loop.get_outputs()}
    pending = set[str]()  # memory that collectives are at work on
    for kernel, loop in loops:
        reads = [name for name, _ in _list_accesses(loop, "reads", {})]
        read, called = {renamed.get(name, name) for name in reads}, find_collective(kernel)
        written = {renamed.get(name, name) for name in (buffer.get_name() for buffer in loop.get_outputs())}
        if called == "wait_tensor":
            pending -= read | written
        elif type(loop.node).__name__ == "MultiOutput":  # one of several results, which is waited for by itself
            pending |= written if pending & read else set()
        elif any(writer.get(name, -1) > kernel.number for name in reads) or (called is None and pending & read):
            return kernel
        elif called is not None:
            pending |= written
    return None


def _is_decided_by_data(*accesses: Any) -> bool:
    return any(access.is_indirect() for access in accesses)


def _list_accesses(loop: LoopNode, kind: str, renamed: Mapping[str, str]) -> list[tuple[str, Any]]:
    """The accesses of a loop, its ``reads`` or ``writes``, each with the name of the memory that they are to."""
    found = getattr(getattr(loop, "read_writes", None), kind, ())
    named = [(str(each.name), each) for each in found if type(each).__name__ in ("MemoryDep", "StarDep")]
    return [(renamed.get(name, name), each) for name, each in named]


def _is_crossed(first: Any, second: Any) -> bool | None:
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


def _compute_places(access: Any) -> torch.Tensor:
    from torch.utils._sympy.interp import sympy_interp

    sizes = [int(size) for size in access.size]
    counters = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij") if sizes else ()
    place = torch.as_tensor(
        sympy_interp(IndexOperators, dict(zip(access.var_names, counters, strict=True)), access.index)
    )
    return place.expand(sizes).reshape(-1)


def _iterate_accesses(
    lowered: LoweredGraph, scheduled: Sequence[LoopNode], renamed: Mapping[str, str]
) -> Iterator[tuple[Any, Any]]:
    """Pairs of accesses to one buffer, of two loops of one loop nest, of which at least one writes.

    Nests that share their outer loops only are passed over, and so are dependences that only order loops.
    """
    inside = {id(loop) for node in scheduled for loop in (node.get_nodes() if hasattr(node, "get_nodes") else ())}

    for nest in getattr(lowered.scheduler, "nodes", ()):
        loops = [loop for loop in nest.get_nodes() if id(loop) in inside]
        fused = type(nest).__name__ == "FusedSchedulerNode"
        for before, after in itertools.combinations(loops, 2) if fused else ():
            for kinds in (("reads", "writes"), ("writes", "reads"), ("writes", "writes")):
                accesses = (
                    _list_accesses(loop, kind, renamed) for loop, kind in zip((before, after), kinds, strict=True)
                )
                for (left, first), (right, second) in itertools.product(*accesses):
                    if left == right:
                        yield first, second
