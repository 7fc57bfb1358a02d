"""Wrappers of the functions that lower a graph, schedule it and generate its code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from fuzzcompile.compiler.kernels.kernel_loops import compute_in_scalars
from fuzzcompile.compiler.kernels.kernel_watch import (
    LoweringWatch,
    at_return,
    format_callback,
    list_operator_names,
    register_graph,
)
from fuzzcompile.compiler.kernels.lowering_control import is_chosen, label_operators, should_fall_back
from fuzzcompile.compiler.watch.ledger import Kernel, KernelStatement, LoweredGraph, list_class_names, take_snapshot
from fuzzcompile.compiler.watch.torch_patch import Function, Patch
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode, Scheduler

CPP = "torch._inductor.codegen.cpp"


@contextlib.contextmanager
def _note_failure(
    watch: LoweringWatch, lowered: LoweredGraph | None, place: str, find_nodes: Callable[[], tuple[str, ...]] = tuple
) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # re-raised: only noted here
        if lowered is not None:
            lowered.record_failure(place, find_nodes(), error, operator=watch.raised_in if place == CODEGEN else None)
        raise


# -- lowering ---------------------------------------------------------------------------------------


def wrap_run(watch: LoweringWatch, original: Function, graph: GraphLowering, *args: Any) -> object:
    """A graph is lowered: keep a copy of it, and a key for the calls of its kernels."""
    recorder = watch.recorder
    module = cast("fx.GraphModule", graph.module)
    whole = type(graph).__name__ == "GraphLowering" and not getattr(graph, "is_const_graph", False)
    if recorder.frame is not None and whole:
        snapshot = take_snapshot(module, recorder.opaque)
        labels = label_operators(module.graph, recorder.direction)
        lowered = LoweredGraph(recorder.frame.index, recorder.direction, graph, snapshot, labels)
        recorder.ledger.lowered.append(lowered)
        watch.keys[id(graph)] = register_graph(lowered, watch.note)
    return original(graph, *args)


def wrap_run_node(watch: LoweringWatch, original: Function, graph: GraphLowering, node: fx.Node) -> object:
    """Keep the IR of a node, and give it a buffer of its own where that is wanted."""
    lowered = watch.find_lowered(graph)
    with _note_failure(watch, lowered, LOWERING, lambda: (node.name,)):
        result: Any = original(graph, node)
    if lowered is not None:
        if is_chosen(watch.control.realised, lowered.labels.get(node.name)) and hasattr(result, "realize"):
            result.realize()
        lowered.values[node.name] = getattr(result, "data", result)
        lowered.marks[node.name] = len(graph.operations)
    return result


def wrap_call_function(
    watch: LoweringWatch, original: Function, graph: Any, target: Function, args: Any, kwargs: Any
) -> object:
    """Have ATen compute the operators that are to fall back."""
    lowered, node = watch.find_lowered(graph), getattr(graph, "current_node", None)
    if lowered is None or node is None or not should_fall_back(watch.control, lowered, node):
        return original(graph, target, args, kwargs)
    from torch._inductor.lowering import fallback_handler

    handler = cast(Function, fallback_handler(target, add_to_fallback_set=False))  # type: ignore[no-untyped-call]
    return handler(*args, **kwargs)


# -- scheduling and code generation -----------------------------------------------------------------


def wrap_can_fuse(
    watch: LoweringWatch, original: Function, scheduler: Any, first: Any, second: Any, *args: Any, **kwargs: Any
) -> object:
    """Refuse to fuse the operators that are to stay apart."""
    apart = watch.control.apart
    lowered = watch.find_current() if apart else None
    labels = [lowered.labels.get(name) for name in list_operator_names([first, second])] if lowered is not None else []
    if apart and any(is_chosen(apart, label) for label in (None, *labels)):
        return False
    return original(scheduler, first, second, *args, **kwargs)


def wrap_buffer_removal(watch: LoweringWatch, original: Function, *args: Any, **kwargs: Any) -> object:
    """Store what one kernel alone reads, where that is wanted."""
    return False if watch.control.stored else original(*args, **kwargs)


def wrap_scheduler_init(
    watch: LoweringWatch, original: Function, scheduler: Scheduler, *args: Any, **kwargs: Any
) -> object:
    """Keep the scheduler of a graph."""
    lowered = watch.find_current()
    with _note_failure(watch, lowered, SCHEDULER):
        result = original(scheduler, *args, **kwargs)
    if lowered is not None:
        lowered.scheduler = scheduler
    return result


def wrap_scheduler_node(
    watch: LoweringWatch, original: Function, scheduler: Any, node: Any, *args: Any, **kwargs: Any
) -> object:
    """Note the operators of a node that cannot be scheduled."""

    def find_nodes() -> tuple[str, ...]:
        return tuple(origin.name for origin in sorted(node.get_origins()) if origin.op == "call_function")

    with _note_failure(watch, watch.find_current(), SCHEDULER, find_nodes):
        return original(scheduler, node, *args, **kwargs)


def wrap_codegen(watch: LoweringWatch, original: Function, scheduler: Scheduler, *args: Any, **kwargs: Any) -> object:
    """Note the operators of the kernel whose code cannot be generated."""

    def find_nodes() -> tuple[str, ...]:
        node = getattr(scheduler, "current_node", None)
        return list_operator_names([node] if node is not None else [])

    with _note_failure(watch, watch.find_current(), CODEGEN, find_nodes):
        return original(scheduler, *args, **kwargs)


def wrap_cpp_node(
    watch: LoweringWatch, original: Function, scheduling: CppScheduling, *args: Any, **kwargs: Any
) -> object:
    """End a kernel after every fused loop nest, where they are to be separate."""
    result = original(scheduling, *args, **kwargs)
    if watch.control.separate:
        scheduling._set_flush_status(True)
    return result


def wrap_triton_masked(
    watch: LoweringWatch, original: Function, mask: object, body: Function, other: bool | float
) -> object:
    """Select by the mask what is masked, whatever the code generator made of the mask."""
    result: Any = original(mask, body, other)
    if not watch.control.selected:
        return result
    from torch._inductor.virtualized import V

    # A variable of the kernel, whose dtype the code generator knows.
    return V.ops.where(mask, result, V.ops.constant(other, result.dtype))


def list_scalar_patches(watch: LoweringWatch) -> Sequence[Patch[LoweringWatch]]:
    """A patch for each operator of vectorised C++ that is to be computed element by element."""
    from torch._inductor.codegen import cpp

    def make_patch(name: str) -> Patch[LoweringWatch]:
        def wrap(watch: LoweringWatch, original: Function, *args: Any, **kwargs: Any) -> object:
            return compute_in_scalars(name, getattr(cpp.CppOverrides, name))(*args, **kwargs)

        text = f"{name} computed element by element"
        return Patch(f"vectorised {name}", (CODEGEN,), text, CPP, f"CppVecOverrides.{name}", wrap)

    return [make_patch(name) for name in watch.control.scalarised if hasattr(cpp.CppOverrides, name)]


# Watching the code generator: which operators each kernel computes, its source, and the calls of it.


def wrap_define_kernel(
    watch: LoweringWatch, original: Function, scheduling: Any, source: str, nodes: Any, *args: Any, **kwargs: Any
) -> object:
    """Keep a kernel's source, its scheduler nodes, and the class that generated it."""
    name = original(scheduling, source, nodes, *args, **kwargs)
    assert isinstance(name, str), "a kernel is defined under a name"
    lowered = watch.find_current()
    if lowered is not None:
        watch.pending[name] = tuple(nodes)
        lowered.sources.setdefault(name, source)
        lowered.generators.setdefault(name, list_class_names(scheduling))
        lowered.statements.setdefault(name, list(watch.statements))
        watch.statements.clear()
    return name


def _generate_watched(
    watch: LoweringWatch, lowered: LoweredGraph, wrapper: Any, make: Callable[[int], Kernel], generate: Function
) -> object:
    number, key = len(lowered.kernels), watch.keys[id(lowered.graph)]
    try:
        lowered.kernels.append(make(number))
        wrapper.writeline(format_callback(key, "before_kernel", number))
    except Exception as error:  # the recorder never fails the compile that it watches
        watch.note(error)
        return generate()
    result = generate()
    wrapper.writeline(format_callback(key, "after_kernel", number))
    return result


def wrap_kernel_call(
    watch: LoweringWatch, original: Function, wrapper: Any, kernel_name: str, call_args: Any, *args: Any, **kwargs: Any
) -> object:
    """Have the wrapper call back before and after a generated kernel."""
    lowered, call = watch.find_current(), functools.partial(original, wrapper, kernel_name, call_args, *args, **kwargs)

    def make(number: int) -> Kernel:
        nodes = [node for node in watch.pending.pop(kernel_name, ()) if hasattr(node, "get_nodes")]
        written = [buffer.get_name() for node in nodes for loop in node.get_nodes() for buffer in loop.get_outputs()]
        reads = tuple(argument for argument in call_args if isinstance(argument, str))
        return Kernel(
            number, kernel_name, False, list_operator_names(nodes), tuple(written), reads, scheduled=tuple(nodes)
        )

    if lowered is None or not watch.values:
        return call()
    return _generate_watched(watch, lowered, wrapper, make, call)


def wrap_extern_call(
    watch: LoweringWatch, original: Function, scheduler: Scheduler, node: ExternKernelSchedulerNode
) -> object:
    """Have the wrapper call back before and after a library's kernel."""
    lowered = watch.find_current()
    if lowered is None or not watch.values:
        return original(scheduler, node)
    # torch 2.11 asks the operation itself for its code
    coded: Any = node if hasattr(node, "codegen") else node.node
    generate: Function = coded.codegen

    def make(number: int) -> Kernel:
        name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
        written = [buffer.get_name() for buffer in node.get_outputs()]
        written += [str(mutated) for mutated in getattr(node.node, "get_mutation_names", list)()]
        reads = tuple(sorted(map(str, node.used_buffer_names())) if hasattr(node, "used_buffer_names") else ())
        return Kernel(number, str(name), True, list_operator_names([node]), tuple(written), reads, (node,))

    def codegen(wrapper: object, *args: Any, **kwargs: Any) -> object:
        return _generate_watched(watch, lowered, wrapper, make, functools.partial(generate, wrapper, *args, **kwargs))

    vars(coded)["codegen"] = codegen
    try:
        return original(scheduler, node)
    finally:
        del vars(coded)["codegen"]


def wrap_compiled_graph(
    watch: LoweringWatch, original: Function, compiled: Any, run: Any, graph: Any, *args: Any, **kwargs: Any
) -> object:
    """Record which compiled object belongs to which graph."""
    result = original(compiled, run, graph, *args, **kwargs)
    lowered = watch.find_lowered(graph)
    if lowered is not None and watch.values:
        watch.compiled[id(compiled)] = watch.keys[id(graph)]
        lowered.program = str(getattr(compiled, "source_code", ""))
        recording = getattr(compiled, "cudagraph_info", None)
        lowered.cudagraphs = recording is not None and not recording.cudagraph_fail_reasons
    return result


def wrap_compiled_call(
    watch: LoweringWatch, original: Function, compiled: Any, inputs: Any, *args: Any, **kwargs: Any
) -> object:
    """Keep what a compiled graph returns and what it left in its inputs."""
    key, given = watch.compiled.get(id(compiled)), list(inputs)  # which the callee empties
    result = original(compiled, inputs, *args, **kwargs)
    if key is not None:
        at_return(key, given, result)
    return result


def wrap_cpp_compile(
    watch: LoweringWatch, original: Function, compiler: Any, argument_types: Any, source: str, *args: Any, **kwargs: Any
) -> object:
    """Record which kernel's C++ a compiler refuses: of the same code, apart from the names that are filled in."""

    def is_source_of(kernel: str, generated: str) -> bool:
        body = generated.partition("{")[2].replace("#pragma CMT", "//").strip()
        return bool(body) and body in source

    with _record_refusal(watch, is_source_of):
        return original(compiler, argument_types, source, *args, **kwargs)


def wrap_triton_compile(
    watch: LoweringWatch, original: Function, compiler: Any, kernel_name: str, source: str, *args: Any, **kwargs: Any
) -> object:
    """Record which kernel Triton refuses."""
    with _record_refusal(watch, lambda kernel, generated: kernel == kernel_name or generated == source):
        return original(compiler, kernel_name, source, *args, **kwargs)


@contextlib.contextmanager
def _record_refusal(watch: LoweringWatch, is_source_of: Callable[[str, str], bool]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of any kind: the compiler's, the linker's, the loader's; it is raised again
        for lowered in watch.recorder.ledger.lowered:
            sources = lowered.sources
            refused = (each for each in lowered.kernels if is_source_of(each.name, sources.get(each.name, "")))
            kernel = next(refused, None)
            if kernel is not None:
                lowered.record_refusal(kernel, error)
        raise


# Recording which operator each expression of a kernel's code computes, while the code is written.


def wrap_operator(
    watch: LoweringWatch, original: Function, proxy: object, name: str, *args: Any, **kwargs: Any
) -> object:
    """Record for which operator code is written."""
    with watch.write_operator(name):
        return original(proxy, name, *args, **kwargs)


def wrap_load(watch: LoweringWatch, original: Function, *args: Any, **kwargs: Any) -> object:
    """Record that a load is written."""
    with watch.write_operator("load"):
        return original(*args, **kwargs)


def wrap_reduction(
    watch: LoweringWatch, original: Function, proxy: Any, dtype: Any, source: Any, kind: str, *args: Any, **kwargs: Any
) -> object:
    """Record which reduction is written."""
    with watch.write_operator(f"reduction:{kind}"):
        return original(proxy, dtype, source, kind, *args, **kwargs)


def wrap_generate(
    watch: LoweringWatch, original: Function, cse: Any, buffer: Any, expression: Any, *args: Any, **kwargs: Any
) -> object:
    """Record the expression written for the innermost operator."""
    variable = original(cse, buffer, expression, *args, **kwargs)
    try:
        if watch.values and watch.operators:
            text = expression.getvalue() if hasattr(expression, "getvalue") else str(expression)
            watch.statements.append(KernelStatement(str(variable), text, watch.operators[-1]))
    except Exception as error:  # the recorder never fails the compile that it watches
        watch.note(error)
    return variable
