"""Wrappers of the functions that lower a graph, schedule it and generate its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from fuzzcompile.compiler.kernels.kernel_loops import compute_in_scalars
from fuzzcompile.compiler.kernels.kernel_watch import (
    LoweringWatch,
    at_return,
    format_callback,
    list_operator_names,
    register_graph,
)
from fuzzcompile.compiler.kernels.lowering_control import is_chosen, label_operators, should_fall_back
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph, list_class_names, take_snapshot
from fuzzcompile.compiler.watch.torch_patch import Function, OriginalCall, Patch
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor import ir
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, Scheduler


CPP = "torch._inductor.codegen.cpp"


# -- lowering ---------------------------------------------------------------------------------------


def wrap_run(watch: LoweringWatch, original: Function) -> Function:
    """A graph is lowered: keep a copy of it, and a key for the calls of its kernels."""

    def run(graph: GraphLowering, *args: object) -> object:
        recorder = watch.recorder
        module = cast("fx.GraphModule", graph.module)
        if recorder.frame is not None and _is_whole(graph):
            lowered = LoweredGraph(
                recorder.frame.index,
                recorder.direction,
                graph,
                take_snapshot(module, recorder.opaque),
                label_operators(module.graph, recorder.direction),
            )
            recorder.ledger.lowered.append(lowered)
            watch.keys[id(graph)] = register_graph(lowered, watch.note)
        return original(graph, *args)

    return run


def _is_whole(graph: GraphLowering) -> bool:
    return type(graph).__name__ == "GraphLowering" and not getattr(graph, "is_const_graph", False)


def wrap_run_node(watch: LoweringWatch, original: Function) -> Function:
    """Keep the IR of a node, and give it a buffer of its own where that is wanted."""

    def run_node(graph: GraphLowering, node: fx.Node) -> object:
        lowered = watch.find_lowered(graph)
        try:
            result = original(graph, node)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                lowered.record_failure(LOWERING, (node.name,), error)
            raise
        if lowered is None:
            return result
        if is_chosen(watch.control.realised, lowered.labels.get(node.name)) and hasattr(result, "realize"):
            result.realize()
        lowered.values[node.name] = getattr(result, "data", result)
        lowered.marks[node.name] = len(graph.operations)
        return result

    return run_node


def wrap_call_function(watch: LoweringWatch, original: Function) -> Function:
    """Have ATen compute the operators that are to fall back."""

    def call_function(
        graph: GraphLowering, target: Function, args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        lowered, node = watch.find_lowered(graph), getattr(graph, "current_node", None)
        if lowered is None or node is None or not should_fall_back(watch.control, lowered, node):
            return original(graph, target, args, kwargs)
        from torch._inductor.lowering import fallback_handler

        handler = cast(Function, fallback_handler(target, add_to_fallback_set=False))  # type: ignore[no-untyped-call]
        return handler(*args, **kwargs)

    return call_function


# -- scheduling and code generation -----------------------------------------------------------------


def wrap_can_fuse(watch: LoweringWatch, original: Function) -> Function:
    """Refuse to fuse the operators that are to stay apart."""

    def can_fuse(
        scheduler: Scheduler, first: BaseSchedulerNode, second: BaseSchedulerNode, *args: object, **kwargs: object
    ) -> object:
        if watch.control.apart:
            lowered = watch.find_current()
            labels = lowered.labels if lowered is not None else {}
            names = list_operator_names([first, second])
            if is_chosen(watch.control.apart, None) or any(
                is_chosen(watch.control.apart, labels.get(n)) for n in names
            ):
                return False
        return original(scheduler, first, second, *args, **kwargs)

    return can_fuse


def wrap_buffer_removal(watch: LoweringWatch, original: Function) -> Function:
    """Store what one kernel alone reads, where that is wanted."""

    def can_be_removed(scheduler: Scheduler, name: str, *args: object, **kwargs: object) -> object:
        return False if watch.control.stored else original(scheduler, name, *args, **kwargs)

    return can_be_removed


def wrap_scheduler_init(watch: LoweringWatch, original: Function) -> Function:
    """Keep the scheduler of a graph."""

    def initialise(scheduler: Scheduler, *args: object, **kwargs: object) -> object:
        lowered = watch.find_current()
        try:
            result = original(scheduler, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                lowered.record_failure(SCHEDULER, (), error)
            raise
        if lowered is not None:
            lowered.scheduler = scheduler
        return result

    return initialise


def wrap_scheduler_node(watch: LoweringWatch, original: Function) -> Function:
    """Note the operators of a node that cannot be scheduled."""

    def create_scheduler_node(scheduler: Scheduler, node: ir.Operation, *args: object, **kwargs: object) -> object:
        lowered = watch.find_current()
        try:
            return original(scheduler, node, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                names = [origin.name for origin in sorted(node.get_origins()) if origin.op == "call_function"]
                lowered.record_failure(SCHEDULER, tuple(names), error)
            raise

    return create_scheduler_node


def wrap_codegen(watch: LoweringWatch, original: Function) -> Function:
    """Note the operators of the kernel whose code cannot be generated."""

    def codegen(scheduler: Scheduler, *args: object, **kwargs: object) -> object:
        lowered = watch.find_current()
        try:
            return original(scheduler, *args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if lowered is not None:
                node = getattr(scheduler, "current_node", None)
                nodes = list_operator_names([node] if node is not None else [])
                lowered.record_failure(CODEGEN, nodes, error, operator=watch.raised_in)
            raise

    return codegen


def wrap_cpp_node(watch: LoweringWatch, original: Function) -> Function:
    """End a kernel after every fused loop nest, where they are to be separate."""

    def codegen_node(scheduling: CppScheduling, *args: object, **kwargs: object) -> object:
        result = original(scheduling, *args, **kwargs)
        if watch.control.separate:
            scheduling._set_flush_status(True)
        return result

    return codegen_node


def wrap_triton_masked(watch: LoweringWatch, original: Function) -> Function:
    """Select by the mask what is masked, whatever the code generator made of the mask."""

    def masked(mask: object, body: Function, other: bool | float) -> object:
        result = original(mask, body, other)
        if not watch.control.selected:
            return result
        from torch._inductor.virtualized import V

        # A variable of the kernel, whose dtype the code generator knows.
        return V.ops.where(mask, result, V.ops.constant(other, result.dtype))  # type: ignore[attr-defined]

    return masked


def list_scalar_patches(watch: LoweringWatch) -> Sequence[Patch[LoweringWatch]]:
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


def _wrap_in_scalars(name: str, watch: LoweringWatch, original: OriginalCall) -> Function:
    from torch._inductor.codegen import cpp

    return compute_in_scalars(name, getattr(cpp.CppOverrides, name))


# Watching the code generator: which operators each kernel computes, its source, and the calls of it.

CodegenFunction = Callable[..., object]


class _WrapperCodegen(Protocol):
    """Inductor's generator of the wrapper, whose methods have no types."""

    def writeline(self, line: str) -> None: ...


def wrap_define_kernel(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Keep a kernel's source, its scheduler nodes, and the class that generated it."""

    def define_kernel(
        scheduling: object, source: str, nodes: Sequence[BaseSchedulerNode], *args: object, **kwargs: object
    ) -> object:
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

    return define_kernel


def wrap_kernel_call(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Have the wrapper call back before and after a generated kernel."""

    def generate_kernel_call(
        wrapper: _WrapperCodegen, kernel_name: str, call_args: Sequence[object], *args: object, **kwargs: object
    ) -> object:
        lowered, number = watch.find_current(), None
        try:
            if lowered is not None and watch.values:
                number = _add_kernel(watch, lowered, kernel_name, [a for a in call_args if isinstance(a, str)])
                wrapper.writeline(format_callback(watch.keys[id(lowered.graph)], "before_kernel", number))
        except Exception as error:  # the recorder never fails the compile that it watches
            watch.note(error)
        result = original(wrapper, kernel_name, call_args, *args, **kwargs)
        if lowered is not None and number is not None:
            wrapper.writeline(format_callback(watch.keys[id(lowered.graph)], "after_kernel", number))
        return result

    return generate_kernel_call


def _add_kernel(watch: LoweringWatch, lowered: LoweredGraph, name: str, arguments: list[str]) -> int:
    nodes = [node for node in watch.pending.pop(name, ()) if hasattr(node, "get_nodes")]
    written = [buffer.get_name() for node in nodes for loop in node.get_nodes() for buffer in loop.get_outputs()]
    number = len(lowered.kernels)
    operators = list_operator_names(nodes)
    lowered.kernels.append(Kernel(number, name, False, operators, tuple(written), tuple(arguments), tuple(nodes)))
    return number


def wrap_extern_call(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Have the wrapper call back before and after a library's kernel."""

    def codegen_extern_call(scheduler: Scheduler, node: ExternKernelSchedulerNode) -> object:
        lowered = watch.find_current()
        if lowered is None or not watch.values:
            return original(scheduler, node)
        coded: Any = (
            node if hasattr(node, "codegen") else node.node
        )  # torch 2.11 asks the operation itself for its code
        generate: CodegenFunction = coded.codegen

        def codegen(wrapper: _WrapperCodegen, *args: object, **kwargs: object) -> object:
            number = None
            try:
                number = _add_extern(lowered, node)
                wrapper.writeline(format_callback(watch.keys[id(lowered.graph)], "before_kernel", number))
            except Exception as error:  # the recorder never fails the compile that it watches
                watch.note(error)
            result = generate(wrapper, *args, **kwargs)
            if number is not None:
                wrapper.writeline(format_callback(watch.keys[id(lowered.graph)], "after_kernel", number))
            return result

        vars(coded)["codegen"] = codegen
        try:
            return original(scheduler, node)
        finally:
            del vars(coded)["codegen"]

    return codegen_extern_call


def _add_extern(lowered: LoweredGraph, node: ExternKernelSchedulerNode) -> int:
    name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
    written = [buffer.get_name() for buffer in node.get_outputs()]
    written += [str(mutated) for mutated in getattr(node.node, "get_mutation_names", list)()]
    reads = sorted(str(name) for name in node.used_buffer_names()) if hasattr(node, "used_buffer_names") else []
    number = len(lowered.kernels)
    lowered.kernels.append(
        Kernel(number, str(name), True, list_operator_names([node]), tuple(written), tuple(reads), (node,))
    )
    return number


def wrap_compiled_graph(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Record which compiled object belongs to which graph."""

    def initialise(
        compiled: object, current_callable: object, graph: GraphLowering, *args: object, **kwargs: object
    ) -> object:
        result = original(compiled, current_callable, graph, *args, **kwargs)
        lowered = watch.find_lowered(graph)
        if lowered is not None and watch.values:
            watch.compiled[id(compiled)] = watch.keys[id(graph)]
            lowered.program = str(getattr(compiled, "source_code", ""))
            recording = getattr(compiled, "cudagraph_info", None)
            lowered.cudagraphs = recording is not None and not recording.cudagraph_fail_reasons
        return result

    return initialise


def wrap_compiled_call(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Keep what a compiled graph returns and what it left in its inputs."""

    def call(compiled: object, inputs: Sequence[object], *args: object, **kwargs: object) -> object:
        key = watch.compiled.get(id(compiled))
        if key is None:
            return original(compiled, inputs, *args, **kwargs)
        given = list(inputs)  # which the callee empties
        result = original(compiled, inputs, *args, **kwargs)
        at_return(key, given, result)
        return result

    return call


def wrap_cpp_compile(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Record which kernel's C++ a compiler refuses."""

    def cpp_pybinding(compiler: object, argument_types: object, source: str, *args: object, **kwargs: object) -> object:
        try:
            return original(compiler, argument_types, source, *args, **kwargs)
        except Exception as error:  # of any kind: the compiler's, the linker's, the loader's; it is raised again
            _record_refusal(watch, error, lambda kernel, generated: _is_same_code(generated, source))
            raise

    return cpp_pybinding


def wrap_triton_compile(watch: LoweringWatch, original: CodegenFunction) -> CodegenFunction:
    """Record which kernel Triton refuses."""

    def triton(compiler: object, kernel_name: str, source: str, *args: object, **kwargs: object) -> object:
        try:
            return original(compiler, kernel_name, source, *args, **kwargs)
        except Exception as error:  # Triton's own classes cannot be imported without Triton; it is raised again
            _record_refusal(watch, error, lambda kernel, generated: kernel == kernel_name or generated == source)
            raise

    return triton


def _record_refusal(watch: LoweringWatch, error: Exception, is_source_of: Callable[[str, str | None], bool]) -> None:
    for lowered in watch.recorder.ledger.lowered:
        kernels = lowered.kernels
        kernel = next((k for k in kernels if is_source_of(k.name, lowered.sources.get(k.name))), None)
        if kernel is not None:
            lowered.record_refusal(kernel, error)


def _is_same_code(generated: str | None, compiled: str) -> bool:
    """Return whether the compiled source is that of a kernel, apart from the names that are filled in."""
    if generated is None:
        return False
    body = generated.partition("{")[2].replace("#pragma CMT", "//")
    return bool(body.strip()) and body.strip() in compiled
