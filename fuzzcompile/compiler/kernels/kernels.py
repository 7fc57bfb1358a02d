"""Watching what happens behind the graph passes: lowering, scheduling, code generation, and the kernels as they run.

The generated wrapper calls back before and after every kernel with its local variables, so that what a kernel wrote
is taken right after it ran, whatever is done with its buffer later. Nothing about fusion changes by that. What must
be changed for a proof is done by :class:`~fuzzcompile.compiler.control.Control`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from fuzzcompile.compiler.kernels import kernel_code, statements
from fuzzcompile.compiler.kernels.control import Control, chooses, falls_back, scalarised
from fuzzcompile.compiler.kernels.kernel_calls import forget, register
from fuzzcompile.compiler.kernels.kernel_watch import Watch, operators_of
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import operator_labels
from fuzzcompile.compiler.ledger import take_snapshot
from fuzzcompile.compiler.recorder import Recorder


@contextlib.contextmanager
def watching(recorder: Recorder, control: Control, *, values: bool) -> Iterator[None]:
    """Watch every graph that is lowered in this block, and do what ``control`` says.

    Args:
        recorder: gets the graphs, and says which frame and direction is compiled.
        control: what is to be done otherwise.
        values: keep what the kernels write.
    """
    if not values and not control:
        yield
        return
    watch = Watch(recorder, control, values)
    with contextlib.ExitStack() as stack:
        stack.enter_context(scalarised(control.scalarised))
        for place, attribute, wrap in _HOOKS:
            try:
                owner: Any = importlib.import_module(place)
                *path, leaf = attribute.split(".")
                for part in path:
                    owner = getattr(owner, part)
                original = getattr(owner, leaf)
            except (ImportError, AttributeError):
                recorder.ledger.trouble.append(f"kernels: this torch has no {place}.{attribute}")
                continue
            setattr(owner, leaf, functools.wraps(original)(wrap(watch, original)))
            stack.callback(setattr, owner, leaf, original)
        try:
            yield
        finally:
            for key in watch.keys.values():
                forget(key)


# -- lowering ---------------------------------------------------------------------------------------


def _wrap_run(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(graph: Any, *args: Any) -> Any:
        recorder = watch.recorder
        try:
            if recorder.frame is not None and _is_whole(graph):
                lowered = Lowered(
                    recorder.frame.index,
                    recorder.direction,
                    graph,
                    take_snapshot(graph.module, recorder.opaque),
                    operator_labels(graph.module.graph, recorder.direction),
                )
                recorder.ledger.lowered.append(lowered)
                watch.keys[id(graph)] = register(lowered)
        except Exception as error:
            watch.note(error)
        return original(graph, *args)

    return run


def _is_whole(graph: Any) -> bool:
    return type(graph).__name__ == "GraphLowering" and not getattr(graph, "is_const_graph", False)


def _wrap_run_node(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def run_node(graph: Any, node: Any) -> Any:
        lowered = watch.of(graph)
        try:
            result = original(graph, node)
        except Exception as error:
            if lowered is not None:
                lowered.failure("lowering", (node.name,), error)
            raise
        if lowered is None:
            return result
        try:
            if watch.wants(watch.control.realised, lowered.labels.get(node.name)) and hasattr(result, "realize"):
                result.realize()
            lowered.values[node.name] = getattr(result, "data", result)
            lowered.marks[node.name] = len(graph.operations)
        except Exception as error:
            watch.note(error)
        return result

    return run_node


def _wrap_call_function(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(graph: Any, target: Any, args: Any, kwargs: Any) -> Any:
        lowered, node = watch.of(graph), getattr(graph, "current_node", None)
        if lowered is not None and node is not None and falls_back(watch.control, lowered, node):
            from torch._inductor.lowering import fallback_handler

            handler: Any = fallback_handler
            return handler(target, add_to_fallback_set=False)(*args, **kwargs)
        return original(graph, target, args, kwargs)

    return call_function


# -- scheduling and code generation -----------------------------------------------------------------


def _wrap_can_fuse(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def can_fuse(scheduler: Any, one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.control.apart:
            lowered = watch.current()
            labels = lowered.labels if lowered is not None else {}
            names = [*operators_of([one]), *operators_of([other])]
            if chooses(watch.control.apart, None) or any(chooses(watch.control.apart, labels.get(n)) for n in names):
                return False
        return original(scheduler, one, other, *args, **kwargs)

    return can_fuse


def _wrap_scheduler(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        lowered = watch.current()
        try:
            result = original(scheduler, *args, **kwargs)
        except Exception as error:
            if lowered is not None:
                lowered.failure("scheduler", (), error)
            raise
        if lowered is not None:
            lowered.scheduler = scheduler
        return result

    return initialise


def _wrap_scheduler_node(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def create_scheduler_node(scheduler: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        lowered = watch.current()
        try:
            return original(scheduler, node, *args, **kwargs)
        except Exception as error:
            if lowered is not None:
                names = [origin.name for origin in sorted(node.get_origins()) if origin.op == "call_function"]
                lowered.failure("scheduler", tuple(names), error)
            raise

    return create_scheduler_node


def _wrap_codegen(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def codegen(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        lowered = watch.current()
        try:
            return original(scheduler, *args, **kwargs)
        except Exception as error:
            if lowered is not None:
                node = getattr(scheduler, "current_node", None)
                nodes = operators_of([node] if node is not None else [])
                lowered.failure("codegen", nodes, error, operator=watch.raised_in)
            raise

    return codegen


def _wrap_cpp_node(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    def codegen_node(scheduling: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduling, *args, **kwargs)
        if watch.control.separate:
            scheduling._set_flush_status(True)
        return result

    return codegen_node


_GRAPH = "torch._inductor.graph"
_SCHEDULER = "torch._inductor.scheduler"
_WRAPPER = "torch._inductor.codegen.wrapper"
_OUTPUT = "torch._inductor.output_code"
_COMMON = "torch._inductor.codegen.common"
_HOOKS: tuple[tuple[str, str, Callable[[Watch, Callable[..., Any]], Callable[..., Any]]], ...] = (
    (_GRAPH, "GraphLowering.run", _wrap_run),
    (_GRAPH, "GraphLowering.run_node", _wrap_run_node),
    (_GRAPH, "GraphLowering.call_function", _wrap_call_function),
    (_SCHEDULER, "Scheduler.__init__", _wrap_scheduler),
    (_SCHEDULER, "Scheduler.create_scheduler_node", _wrap_scheduler_node),
    (_SCHEDULER, "Scheduler.can_fuse", _wrap_can_fuse),
    (_SCHEDULER, "Scheduler._codegen", _wrap_codegen),
    (_SCHEDULER, "Scheduler.codegen_extern_call", kernel_code.wrap_extern_call),
    ("torch._inductor.codegen.cpp", "CppScheduling.codegen_node", _wrap_cpp_node),
    ("torch._inductor.codegen.cpp", "CppScheduling.define_kernel", kernel_code.wrap_define_kernel),
    ("torch._inductor.codegen.triton", "TritonScheduling.define_kernel", kernel_code.wrap_define_kernel),
    (_COMMON, "CSEProxy._default", statements.wrap_operator),
    (_COMMON, "CSEProxy.load", statements.wrap_load),
    (_COMMON, "CSEProxy.reduction", statements.wrap_reduction),
    (_COMMON, "CSE.generate", statements.wrap_generate),
    (_WRAPPER, "PythonWrapperCodegen.generate_kernel_call", kernel_code.wrap_kernel_call),
    (_OUTPUT, "CompiledFxGraph.__init__", kernel_code.wrap_compiled),
    (_OUTPUT, "CompiledFxGraph.__call__", kernel_code.wrap_compiled_call),
    ("torch._inductor.async_compile", "AsyncCompile.cpp_pybinding", kernel_code.wrap_cpp_compile),
)
