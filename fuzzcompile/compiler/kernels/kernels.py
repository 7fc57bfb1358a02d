"""Wrappers of the functions that lower a graph, schedule it and generate its code.

The generated wrapper calls back before and after every kernel with its local variables, so that what a kernel wrote
is taken right after it ran, whatever is done with its buffer later. Nothing about fusion changes by that. What a proof
has to change is said by :class:`~fuzzcompile.compiler.kernels.control.Control`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from fuzzcompile.compiler.kernels.codegen_operators import in_scalars
from fuzzcompile.compiler.kernels.control import chooses, falls_back
from fuzzcompile.compiler.kernels.kernel_calls import register
from fuzzcompile.compiler.kernels.kernel_watch import Watch, operators_of
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import operator_labels
from fuzzcompile.compiler.ledger import take_snapshot
from fuzzcompile.compiler.patching import Attempt, Function, Patch
from fuzzcompile.stage_names import CODEGEN, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor import ir
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler

CPP = "torch._inductor.codegen.cpp"


# -- lowering ---------------------------------------------------------------------------------------


def wrap_run(watch: Watch, original: Function) -> Function:
    """A graph is lowered: keep a copy of it, and a key for the calls of its kernels."""

    def run(graph: GraphLowering, *args: object) -> object:
        recorder = watch.recorder
        module = cast("fx.GraphModule", graph.module)
        if recorder.frame is not None and _is_whole(graph):
            lowered = Lowered(
                recorder.frame.index,
                recorder.direction,
                graph,
                take_snapshot(module, recorder.opaque),
                operator_labels(module.graph, recorder.direction),
            )
            recorder.ledger.lowered.append(lowered)
            watch.keys[id(graph)] = register(lowered, watch.note)
        return original(graph, *args)

    return run


def _is_whole(graph: GraphLowering) -> bool:
    return type(graph).__name__ == "GraphLowering" and not getattr(graph, "is_const_graph", False)


def wrap_run_node(watch: Watch, original: Function) -> Function:
    """Keep the IR of a node, and give it a buffer of its own where that is wanted."""

    def run_node(graph: GraphLowering, node: fx.Node) -> object:
        lowered = watch.of(graph)
        try:
            result = original(graph, node)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                lowered.failure(LOWERING, (node.name,), error)
            raise
        if lowered is None:
            return result
        if chooses(watch.control.realised, lowered.labels.get(node.name)) and hasattr(result, "realize"):
            result.realize()
        lowered.values[node.name] = getattr(result, "data", result)
        lowered.marks[node.name] = len(graph.operations)
        return result

    return run_node


def wrap_call_function(watch: Watch, original: Function) -> Function:
    """Have ATen compute the operators that are to fall back."""

    def call_function(
        graph: GraphLowering, target: Function, args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        lowered, node = watch.of(graph), getattr(graph, "current_node", None)
        if lowered is None or node is None or not falls_back(watch.control, lowered, node):
            return original(graph, target, args, kwargs)
        from torch._inductor.lowering import fallback_handler

        handler = cast(Function, fallback_handler(target, add_to_fallback_set=False))  # type: ignore[no-untyped-call]
        return handler(*args, **kwargs)

    return call_function


# -- scheduling and code generation -----------------------------------------------------------------


def wrap_can_fuse(watch: Watch, original: Function) -> Function:
    """Refuse to fuse the operators that are to stay apart."""

    def can_fuse(
        scheduler: Scheduler, first: BaseSchedulerNode, second: BaseSchedulerNode, *args: object, **kwargs: object
    ) -> object:
        if watch.control.apart:
            lowered = watch.current()
            labels = lowered.labels if lowered is not None else {}
            names = operators_of([first, second])
            if chooses(watch.control.apart, None) or any(chooses(watch.control.apart, labels.get(n)) for n in names):
                return False
        return original(scheduler, first, second, *args, **kwargs)

    return can_fuse


def wrap_removal(watch: Watch, original: Function) -> Function:
    """Store what one kernel alone reads, where that is wanted."""

    def can_be_removed(scheduler: Scheduler, name: str, *args: object, **kwargs: object) -> object:
        return False if watch.control.stored else original(scheduler, name, *args, **kwargs)

    return can_be_removed


def wrap_scheduler(watch: Watch, original: Function) -> Function:
    """Keep the scheduler of a graph."""

    def initialise(scheduler: Scheduler, *args: object, **kwargs: object) -> object:
        lowered = watch.current()
        try:
            result = original(scheduler, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                lowered.failure(SCHEDULER, (), error)
            raise
        if lowered is not None:
            lowered.scheduler = scheduler
        return result

    return initialise


def wrap_scheduler_node(watch: Watch, original: Function) -> Function:
    """Note the operators of a node that cannot be scheduled."""

    def create_scheduler_node(scheduler: Scheduler, node: ir.Operation, *args: object, **kwargs: object) -> object:
        lowered = watch.current()
        try:
            return original(scheduler, node, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                names = [origin.name for origin in sorted(node.get_origins()) if origin.op == "call_function"]
                lowered.failure(SCHEDULER, tuple(names), error)
            raise

    return create_scheduler_node


def wrap_codegen(watch: Watch, original: Function) -> Function:
    """Note the operators of the kernel whose code cannot be generated."""

    def codegen(scheduler: Scheduler, *args: object, **kwargs: object) -> object:
        lowered = watch.current()
        try:
            return original(scheduler, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                node = getattr(scheduler, "current_node", None)
                nodes = operators_of([node] if node is not None else [])
                lowered.failure(CODEGEN, nodes, error, operator=watch.raised_in)
            raise

    return codegen


def wrap_cpp_node(watch: Watch, original: Function) -> Function:
    """End a kernel after every fused loop nest, where they are to be separate."""

    def codegen_node(scheduling: CppScheduling, *args: object, **kwargs: object) -> object:
        result = original(scheduling, *args, **kwargs)
        if watch.control.separate:
            scheduling._set_flush_status(True)
        return result

    return codegen_node


def wrap_masked(watch: Watch, original: Function) -> Function:
    """Select by the mask what is masked, whatever the code generator made of the mask."""

    def masked(mask: object, body: Function, other: bool | float) -> object:
        result = original(mask, body, other)
        if not watch.control.selected:
            return result
        from torch._inductor.virtualized import V

        # A variable of the kernel, whose dtype the code generator knows.
        return V.ops.where(mask, result, V.ops.constant(other, result.dtype))  # type: ignore[attr-defined]

    return masked


def scalar_patches(watch: Watch) -> Sequence[Patch[Watch]]:
    """A patch for each operator of vectorised C++ that is to be computed element by element."""
    from torch._inductor.codegen import cpp

    return [
        Patch(
            f"vectorised {name}",
            (CODEGEN,),
            f"{name} computed element by element",
            CPP,
            f"CppVecOverrides.{name}",
            functools.partial(_wrap_in_scalars, name),
        )
        for name in watch.control.scalarised
        if hasattr(cpp.CppOverrides, name)
    ]


def _wrap_in_scalars(name: str, watch: Watch, original: Attempt) -> Function:
    from torch._inductor.codegen import cpp

    return in_scalars(name, getattr(cpp.CppOverrides, name))
