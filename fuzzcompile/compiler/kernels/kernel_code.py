"""Watching the code generator: which operators each kernel computes, its source, and the calls of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fuzzcompile.compiler.kernels.kernel_calls import at_return, callback
from fuzzcompile.compiler.kernels.kernel_watch import Watch, operators_of
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered, class_names

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, Scheduler

Function = Callable[..., object]


class _Wrapper(Protocol):
    """Inductor's generator of the wrapper, whose methods have no types."""

    def writeline(self, line: str) -> None: ...


def wrap_define_kernel(watch: Watch, original: Function) -> Function:
    """Keep a kernel's source, its scheduler nodes, and the class that generated it."""

    def define_kernel(
        scheduling: object, source: str, nodes: Sequence[BaseSchedulerNode], *args: object, **kwargs: object
    ) -> object:
        name = original(scheduling, source, nodes, *args, **kwargs)
        assert isinstance(name, str), "a kernel is defined under a name"
        lowered = watch.current()
        if lowered is not None:
            watch.pending[name] = tuple(nodes)
            lowered.sources.setdefault(name, source)
            lowered.generators.setdefault(name, class_names(scheduling))
            lowered.statements.setdefault(name, list(watch.statements))
            watch.statements.clear()
        return name

    return define_kernel


def wrap_kernel_call(watch: Watch, original: Function) -> Function:
    """Have the wrapper call back before and after a generated kernel."""

    def generate_kernel_call(
        wrapper: _Wrapper, kernel_name: str, call_args: Sequence[object], *args: object, **kwargs: object
    ) -> object:
        lowered, number = watch.current(), None
        try:
            if lowered is not None and watch.values:
                number = _add_kernel(watch, lowered, kernel_name, [a for a in call_args if isinstance(a, str)])
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "before_kernel", number))
        except Exception as error:  # the recorder never fails the compile that it watches
            watch.note(error)
        result = original(wrapper, kernel_name, call_args, *args, **kwargs)
        if lowered is not None and number is not None:
            wrapper.writeline(callback(watch.keys[id(lowered.graph)], "after_kernel", number))
        return result

    return generate_kernel_call


def _add_kernel(watch: Watch, lowered: Lowered, name: str, arguments: list[str]) -> int:
    nodes = [node for node in watch.pending.pop(name, ()) if hasattr(node, "get_nodes")]
    written = [buffer.get_name() for node in nodes for loop in node.get_nodes() for buffer in loop.get_outputs()]
    number = len(lowered.kernels)
    operators = operators_of(nodes)
    lowered.kernels.append(Kernel(number, name, False, operators, tuple(written), tuple(arguments), tuple(nodes)))
    return number


def wrap_extern_call(watch: Watch, original: Function) -> Function:
    """Have the wrapper call back before and after a library's kernel."""

    def codegen_extern_call(scheduler: Scheduler, node: ExternKernelSchedulerNode) -> object:
        lowered = watch.current()
        if lowered is None or not watch.values:
            return original(scheduler, node)
        coded: Any = (
            node if hasattr(node, "codegen") else node.node
        )  # torch 2.11 asks the operation itself for its code
        generate: Function = coded.codegen

        def codegen(wrapper: _Wrapper, *args: object, **kwargs: object) -> object:
            number = None
            try:
                number = _add_extern(lowered, node)
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "before_kernel", number))
            except Exception as error:  # the recorder never fails the compile that it watches
                watch.note(error)
            result = generate(wrapper, *args, **kwargs)
            if number is not None:
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "after_kernel", number))
            return result

        vars(coded)["codegen"] = codegen
        try:
            return original(scheduler, node)
        finally:
            del vars(coded)["codegen"]

    return codegen_extern_call


def _add_extern(lowered: Lowered, node: ExternKernelSchedulerNode) -> int:
    name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
    written = [buffer.get_name() for buffer in node.get_outputs()]
    written += [str(mutated) for mutated in getattr(node.node, "get_mutation_names", list)()]
    reads = sorted(str(name) for name in node.used_buffer_names()) if hasattr(node, "used_buffer_names") else []
    number = len(lowered.kernels)
    lowered.kernels.append(Kernel(number, str(name), True, operators_of([node]), tuple(written), tuple(reads), (node,)))
    return number


def wrap_compiled(watch: Watch, original: Function) -> Function:
    """Record which compiled object belongs to which graph."""

    def initialise(
        compiled: object, current_callable: object, graph: GraphLowering, *args: object, **kwargs: object
    ) -> object:
        result = original(compiled, current_callable, graph, *args, **kwargs)
        lowered = watch.of(graph)
        if lowered is not None and watch.values:
            watch.compiled[id(compiled)] = watch.keys[id(graph)]
            lowered.program = str(getattr(compiled, "source_code", ""))
            recording = getattr(compiled, "cudagraph_info", None)
            lowered.cudagraphs = recording is not None and not recording.cudagraph_fail_reasons
        return result

    return initialise


def wrap_compiled_call(watch: Watch, original: Function) -> Function:
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


def wrap_cpp_compile(watch: Watch, original: Function) -> Function:
    """Record which kernel's C++ a compiler refuses."""

    def cpp_pybinding(compiler: object, argument_types: object, source: str, *args: object, **kwargs: object) -> object:
        try:
            return original(compiler, argument_types, source, *args, **kwargs)
        except Exception as error:  # of any kind: the compiler's, the linker's, the loader's; it is raised again
            _refused(watch, error, lambda kernel, generated: _same_code(generated, source))
            raise

    return cpp_pybinding


def wrap_triton_compile(watch: Watch, original: Function) -> Function:
    """Record which kernel Triton refuses."""

    def triton(compiler: object, kernel_name: str, source: str, *args: object, **kwargs: object) -> object:
        try:
            return original(compiler, kernel_name, source, *args, **kwargs)
        except Exception as error:  # Triton's own classes cannot be imported without Triton; it is raised again
            _refused(watch, error, lambda kernel, generated: kernel == kernel_name or generated == source)
            raise

    return triton


def _refused(watch: Watch, error: Exception, is_source_of: Callable[[str, str | None], bool]) -> None:
    for lowered in watch.recorder.ledger.lowered:
        kernels = lowered.kernels
        kernel = next((k for k in kernels if is_source_of(k.name, lowered.sources.get(k.name))), None)
        if kernel is not None:
            lowered.refused(kernel, error)


def _same_code(generated: str | None, compiled: str) -> bool:
    """Return whether the compiled source is that of a kernel, apart from the names that are filled in."""
    if generated is None:
        return False
    body = generated.partition("{")[2].replace("#pragma CMT", "//")
    return bool(body.strip()) and body.strip() in compiled
