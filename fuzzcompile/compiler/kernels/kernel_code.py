"""Watching the code generator: which operators each kernel computes, its source, and the calls of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzcompile.compiler.kernels.kernel_calls import at_return, callback
from fuzzcompile.compiler.kernels.kernel_watch import Watch, operators_of
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered


def wrap_define_kernel(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a kernel's source and its scheduler nodes."""

    def define_kernel(scheduling: Any, source: str, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        name = original(scheduling, source, nodes, *args, **kwargs)
        lowered = watch.current()
        if lowered is not None:
            watch.pending[name] = tuple(nodes)
            lowered.sources.setdefault(name, source)
            lowered.statements.setdefault(name, list(watch.statements))
            watch.statements.clear()
        return name

    return define_kernel


def wrap_kernel_call(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have the wrapper call back before and after a generated kernel."""

    def generate_kernel_call(wrapper: Any, kernel_name: str, call_args: Any, *args: Any, **kwargs: Any) -> Any:
        lowered, number = watch.current(), None
        try:
            if lowered is not None and watch.values:
                number = _add_kernel(watch, lowered, kernel_name, [a for a in call_args if isinstance(a, str)])
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "before_kernel", number))
        except Exception as error:
            watch.note(error)
        result = original(wrapper, kernel_name, call_args, *args, **kwargs)
        if lowered is not None and number is not None:
            wrapper.writeline(callback(watch.keys[id(lowered.graph)], "after_kernel", number))
        return result

    return generate_kernel_call


def _add_kernel(watch: Watch, lowered: Lowered, name: str, arguments: list[str]) -> int:
    nodes = [node for node in watch.pending.pop(name, ()) if hasattr(node, "get_nodes")]
    written = [buffer.get_name() for node in nodes for one in node.get_nodes() for buffer in one.get_outputs()]
    number = len(lowered.kernels)
    operators = operators_of(nodes)
    lowered.kernels.append(Kernel(number, name, False, operators, tuple(written), tuple(arguments), tuple(nodes)))
    return number


def wrap_extern_call(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have the wrapper call back before and after a library's kernel."""

    def codegen_extern_call(scheduler: Any, node: Any) -> Any:
        lowered = watch.current()
        if lowered is None or not watch.values:
            return original(scheduler, node)
        generate = node.codegen

        def codegen(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            number = None
            try:
                number = _add_extern(lowered, node)
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "before_kernel", number))
            except Exception as error:
                watch.note(error)
            result = generate(wrapper, *args, **kwargs)
            if number is not None:
                wrapper.writeline(callback(watch.keys[id(lowered.graph)], "after_kernel", number))
            return result

        node.codegen = codegen
        try:
            return original(scheduler, node)
        finally:
            del node.codegen

    return codegen_extern_call


def _add_extern(lowered: Lowered, node: Any) -> int:
    name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
    written = [buffer.get_name() for buffer in node.get_outputs()]
    written += [str(mutated) for mutated in node.node.get_mutation_names()]
    reads = sorted(str(name) for name in node.used_buffer_names()) if hasattr(node, "used_buffer_names") else []
    number = len(lowered.kernels)
    lowered.kernels.append(Kernel(number, str(name), True, operators_of([node]), tuple(written), tuple(reads), (node,)))
    return number


def wrap_compiled(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Know which compiled object belongs to which graph."""

    def initialise(compiled: Any, current_callable: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(compiled, current_callable, graph, *args, **kwargs)
        lowered = watch.of(graph)
        if lowered is not None and watch.values:
            watch.compiled[id(compiled)] = watch.keys[id(graph)]
        return result

    return initialise


def wrap_compiled_call(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a compiled graph returns and what it left in its inputs."""

    def call(compiled: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        key = watch.compiled.get(id(compiled))
        if key is None:
            return original(compiled, inputs, *args, **kwargs)
        given = list(inputs)  # which the callee empties
        result = original(compiled, inputs, *args, **kwargs)
        at_return(key, given, result)
        return result

    return call


def wrap_cpp_compile(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Note which kernel's C++ does not compile."""

    def cpp_pybinding(compiler: Any, argument_types: Any, source: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(compiler, argument_types, source, *args, **kwargs)
        except Exception as error:
            for lowered in watch.recorder.ledger.lowered:
                kernel = next((k for k in lowered.kernels if _same_code(lowered.sources.get(k.name), source)), None)
                if kernel is not None:
                    lowered.refused(kernel, error)
            raise

    return cpp_pybinding


def _same_code(generated: str | None, compiled: str) -> bool:
    """Whether the compiled source is that of a kernel, but for the names that are filled in."""
    if generated is None:
        return False
    body = generated.partition("{")[2].replace("#pragma CMT", "//")
    return bool(body.strip()) and body.strip() in compiled
