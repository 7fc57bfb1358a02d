"""The watch on a compile behind its graph passes: what its wrapper calls back, and wrappers of lowering and codegen."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from fuzzcompile.compiler.kernels.kernel_loops import compute_in_scalars, find_collective
from fuzzcompile.compiler.kernels.lowering_control import (
    Control,
    find_call,
    find_computing,
    is_chosen,
    label_operators,
    should_fall_back,
)
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch.ledger import (
    KEPT_BYTES,
    GraphCall,
    Kernel,
    KernelStatement,
    LoweredGraph,
    OverwrittenBuffer,
    list_class_names,
    take_snapshot,
)
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS, Recorder
from fuzzcompile.compiler.watch.torch_patch import Function, Patch
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER
from fuzzcompile.run.torch_attributes import ReplacedAttribute

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, Scheduler

# Callbacks of the wrapper of a watched compile: before and after every kernel, and once the graph returned.

_watched_graphs: dict[int, tuple[LoweredGraph, Callable[[Exception], None]]] = {}
_keys = itertools.count(1)


def before_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` is about to be called: its arguments should hold what was written to them."""

    def check(lowered: LoweredGraph, call: GraphCall) -> None:
        call.running = number
        for name in lowered.kernels[number].reads:
            value, last = variables.get(name), call.last.get(name)
            if last is not None and isinstance(value, torch.Tensor) and not _has_same_bits(value, last[1]):
                call.overwritten.append(OverwrittenBuffer(name, last[0], number))
                del call.last[name]

    _watch_execution(key, check, starts=number == 0)


def after_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` returned: keep what it wrote."""

    def keep(lowered: LoweredGraph, call: GraphCall) -> None:
        call.running = None
        renamed = getattr(lowered.scheduler, "mutation_real_name", {})
        for name in lowered.kernels[number].writes:
            variable = renamed.get(name, name)
            value = variables.get(variable)
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                call.kept += value.untyped_storage().nbytes()
                if call.kept <= KEPT_BYTES:
                    kept = value.detach().clone()
                    call.written[number, name] = kept
                    if find_collective(lowered.kernels[number]) in (None, "wait_tensor"):  # else it is still at work
                        call.last[variable] = number, kept

    _watch_execution(key, keep)


def at_return(key: int, inputs: Sequence[object], outputs: object) -> None:
    """Graph ``key`` returned."""

    def keep(lowered: LoweredGraph, call: GraphCall) -> None:
        call.last.clear()
        listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        call.outputs = list(map(_copy, listed))
        names = list(lowered.graph.graph_inputs)
        mutated = {names.index(name) for name in lowered.graph.mutated_inputs if name in names}
        # Inputs that the graph writes to, whatever became of that in the lowering.
        placeholders = (node for node in lowered.snapshot.graph.nodes if node.op == "placeholder")
        for place, node in enumerate(placeholders):
            users = (user for user in node.users if user.op == "call_function" and user.args[:1] == (node,))
            written = place in mutated or any("copy_" in str(user.target) for user in users)
            copied = _copy(inputs[place]) if written else None
            if isinstance(copied, torch.Tensor):
                call.inputs_after[place] = copied

    _watch_execution(key, keep)


def _copy(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _has_same_bits(value: torch.Tensor, kept: torch.Tensor) -> bool:
    if value.shape != kept.shape or value.dtype != kept.dtype:
        return True  # another view of it
    return bool(((value == kept) | ((value != value) & (kept != kept))).all())


def _watch_execution(key: int, run: Callable[[LoweredGraph, GraphCall], None], *, starts: bool = False) -> None:
    """Run a function on the execution of a graph that is under way, if it is watched; its errors are noted only."""
    if key not in _watched_graphs:
        return
    lowered, note = _watched_graphs[key]
    calls = lowered.calls
    if not calls or calls[-1].outputs is not None or (starts and bool(calls[-1].written)):
        if len(calls) > CAPTURED_CALLS:
            return
        calls.append(GraphCall())
    if len(calls) <= CAPTURED_CALLS:
        try:
            run(lowered, calls[-1])
        except Exception as error:
            note(error)
            calls[-1].kept = KEPT_BYTES


@dataclass
class LoweringWatch:
    """State of one watched compile, which keeps what kernels write (``values``) in ``recorder.ledger.lowered``."""

    recorder: Recorder
    control: Control
    values: bool
    pending: dict[str, tuple[BaseSchedulerNode, ...]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    compiled: dict[int, int] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    statements: list[KernelStatement] = field(default_factory=list)
    raised_in: str = ""

    def find_lowered(self, graph: object) -> LoweredGraph | None:
        """Return the record of a graph that is lowered; None for the body of a higher-order operator."""
        return next((lowered for lowered in reversed(self.recorder.ledger.lowered) if lowered.graph is graph), None)

    def find_current(self) -> LoweredGraph | None:
        """Return the record of the graph that code is generated for now."""
        from torch._inductor.virtualized import V

        return self.find_lowered(V.graph)

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.recorder.record_unseen(unseen, error)

    def note(self, error: Exception) -> None:
        """Write down an error of the watching, which the compile is kept from."""
        missed = Unseen("kernels", describe_error(error), (LOWERING, SCHEDULER, CODEGEN), "values of kernels")
        self.record_unseen(missed, error)

    def close(self) -> None:
        """Keep nothing of further calls."""
        for key in self.keys.values():
            _watched_graphs.pop(key, None)


def list_operator_names(nodes: Sequence[Any]) -> tuple[str, ...]:
    """Names of the FX nodes behind scheduler nodes, in the order of their graph."""
    parts = (part for scheduled in nodes if hasattr(scheduled, "get_nodes") for part in scheduled.get_nodes())
    return _list_calls(origin for part in parts for origin in getattr(getattr(part, "node", None), "origins", ()))


def _list_calls(origins: Iterable[fx.Node]) -> tuple[str, ...]:
    return tuple(node.name for node in sorted(set(origins)) if node.op == "call_function")


CPP = "torch._inductor.codegen.cpp"


def _with_call(run: Callable[..., object]) -> Function:
    """What runs in the place of a function: ``run`` gets the watch, the call, and the first arguments that it names.

    The call that was made is a function without arguments.
    """
    count = run.__code__.co_argcount - 2

    @functools.wraps(run)
    def replacement(watch: LoweringWatch, original: Function, *args: Any, **kwargs: Any) -> object:
        return run(watch, functools.partial(original, *args, **kwargs), *[*args, *kwargs.values()][:count])

    return replacement


@contextlib.contextmanager
def _note_failure(
    watch: LoweringWatch, lowered: LoweredGraph | None, place: str, find_nodes: Callable[[], tuple[str, ...]] = tuple
) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # re-raised: only noted here
        if lowered is not None:
            lowered.record_failure(place, find_nodes(), error, watch.raised_in if place == CODEGEN else "")
        raise


@_with_call
def wrap_run(watch: LoweringWatch, call: Function, graph: GraphLowering) -> object:
    """A graph is lowered: keep a copy of it, and a key for the calls of its kernels."""
    recorder = watch.recorder
    module = cast("fx.GraphModule", graph.module)
    whole = type(graph).__name__ == "GraphLowering" and not getattr(graph, "is_const_graph", False)
    if recorder.frame is not None and whole:
        snapshot = take_snapshot(module, recorder.opaque)
        labels = label_operators(module.graph, recorder.direction)
        lowered = LoweredGraph(recorder.frame.index, recorder.direction, graph, snapshot, labels)
        recorder.ledger.lowered.append(lowered)
        watch.keys[id(graph)] = key = next(_keys)
        _watched_graphs[key] = lowered, watch.note
    return call()


@_with_call
def wrap_run_node(watch: LoweringWatch, call: Function, graph: GraphLowering, node: fx.Node) -> object:
    """Keep the IR of a node, and give it a buffer of its own where that is wanted."""
    lowered = watch.find_lowered(graph)
    with _note_failure(watch, lowered, LOWERING, lambda: (node.name,)):
        result: Any = call()
    if lowered is not None:
        if is_chosen(watch.control.realised, lowered.labels.get(node.name)) and hasattr(result, "realize"):
            result = _copy_view(result)
            result.realize()
        if watch.control.strided:
            result = _lay_out(result, getattr(graph, "user_visible_output_strides", {}).get(node) or ())
        lowered.values[node.name] = getattr(result, "data", result)
        lowered.marks[node.name] = len(graph.operations)
    return result


def _lay_out(value: Any, strides: Sequence[int | torch.SymInt]) -> Any:
    """The value in memory of these strides, a copy where it has others; as it is where there are none, or of data."""
    from torch._inductor.ir import ExternKernel, TensorBox
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if not strides or not isinstance(value, TensorBox) or free_unbacked_symbols(strides):
        return value
    return ExternKernel.require_exact_strides(value, strides)


def _copy_view(value: Any) -> Any:
    """A copy of a view, which has no buffer of its own; any other value as it is."""
    from torch._inductor.ir import BaseView
    from torch._inductor.lowering import clone

    return clone(value) if isinstance(getattr(value, "data", None), BaseView) else value


@_with_call
def wrap_call_function(
    watch: LoweringWatch, call: Function, graph: Any, target: Function, args: Any, kwargs: Any
) -> object:
    """Have ATen compute the operators that are to fall back, on tensors laid out as the graph says."""
    lowered, node = watch.find_lowered(graph), getattr(graph, "current_node", None)
    if lowered is None or node is None:
        return call()
    caller = _find_caller(graph, node)
    if caller is None or not should_fall_back(watch.control, lowered, caller):
        return call()
    computing = find_computing(target)
    if computing is None:  # it has a body, in which the operator is called
        return call()
    from torch._inductor.lowering import constrain_to_fx_strides, fallback_handler

    args, kwargs = constrain_to_fx_strides(node, *args, **kwargs)  # type: ignore[no-untyped-call]
    handler = cast(Function, fallback_handler(computing, add_to_fallback_set=False))  # type: ignore[no-untyped-call]
    return handler(*args, **kwargs)


def _find_caller(graph: Any, node: fx.Node) -> fx.Node | None:
    """The node of the graph that makes a call: it may be in the body of one; None where it is in none of those."""
    if node.graph is graph.module.graph:
        return node
    return next((each for each in graph.module.graph.nodes if find_call(each) is node), None)


@_with_call
def wrap_can_fuse(watch: LoweringWatch, call: Function, scheduler: Any, first: Any, second: Any) -> object:
    """Refuse to fuse the operators that are to stay apart."""
    apart = watch.control.apart
    lowered = watch.find_current() if apart else None
    labels = [lowered.labels.get(name) for name in list_operator_names([first, second])] if lowered is not None else []
    if apart and any(is_chosen(apart, label) for label in (None, *labels)):
        return False
    return call()


@_with_call
def wrap_buffer_removal(watch: LoweringWatch, call: Function) -> object:
    """Store what one kernel alone reads, where that is wanted."""
    return False if watch.control.stored else call()


@_with_call
def wrap_scheduler_init(watch: LoweringWatch, call: Function, scheduler: Scheduler) -> object:
    """Keep the scheduler of a graph."""
    lowered = watch.find_current()
    with _note_failure(watch, lowered, SCHEDULER):
        result = call()
    if lowered is not None:
        lowered.scheduler = scheduler
    return result


@_with_call
def wrap_scheduler_node(watch: LoweringWatch, call: Function, scheduler: Any, node: Any) -> object:
    """Note the operators of a node that cannot be scheduled."""
    with _note_failure(watch, watch.find_current(), SCHEDULER, lambda: _list_calls(node.get_origins())):
        return call()


@_with_call
def wrap_codegen(watch: LoweringWatch, call: Function, scheduler: Scheduler) -> object:
    """Note the operators of the kernel whose code cannot be generated."""
    with _note_failure(
        watch, watch.find_current(), CODEGEN, lambda: list_operator_names([getattr(scheduler, "current_node", None)])
    ):
        return call()


@_with_call
def wrap_cpp_node(watch: LoweringWatch, call: Function, scheduling: CppScheduling) -> object:
    """End a kernel after every fused loop nest, where they are to be separate."""
    result = call()
    if watch.control.separate:
        scheduling._set_flush_status(True)
    return result


@_with_call
def wrap_outer_loops(watch: LoweringWatch, call: Function) -> object:
    """Refuse to put loops of other ranges under one outer loop, where they are to be fused as a whole."""
    return False if watch.control.flat else call()


@_with_call
def wrap_loop_split(watch: LoweringWatch, call: Function, scheduling: CppScheduling, nodes: Sequence[Any]) -> object:
    """Note operators whose loops are made two for a division in an index, or keep their loops."""
    if watch.control.unsplit:
        return nodes
    before = [node.group for node in nodes]
    result = call()
    lowered = watch.find_current()
    if lowered is not None and [node.group for node in nodes] != before:
        lowered.split.update(list_operator_names(nodes))
    return result


@_with_call
def wrap_triton_masked(
    watch: LoweringWatch, call: Function, mask: object, body: Function, other: bool | float
) -> object:
    """Select by the mask what is masked, whatever the code generator made of the mask."""
    result: Any = call()
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


@_with_call
def wrap_define_kernel(watch: LoweringWatch, call: Function, scheduling: Any, source: str, nodes: Any) -> object:
    """Keep a kernel's source, its scheduler nodes, and the class that generated it."""
    name = call()
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
        package, _, rest = __name__.partition(".")
        callback = f"__import__('{package}.{rest}').{rest}.{{}}({key}, {number}, locals())"
        wrapper.writeline(callback.format("before_kernel"))
    except Exception as error:  # the recorder never fails the compile that it watches
        watch.note(error)
        return generate()
    result = generate()
    wrapper.writeline(callback.format("after_kernel"))
    return result


@_with_call
def wrap_kernel_call(watch: LoweringWatch, call: Function, wrapper: Any, kernel_name: str, call_args: Any) -> object:
    """Have the wrapper call back before and after a generated kernel."""
    lowered = watch.find_current()

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


@_with_call
def wrap_extern_call(
    watch: LoweringWatch, call: Function, scheduler: Scheduler, node: ExternKernelSchedulerNode
) -> object:
    """Have the wrapper call back before and after a library's kernel."""
    lowered = watch.find_current()
    if lowered is None or not watch.values:
        return call()
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
        return call()
    finally:
        del vars(coded)["codegen"]


@_with_call
def wrap_compiled_graph(watch: LoweringWatch, call: Function, compiled: Any, run: Any, graph: Any) -> object:
    """Record which compiled object belongs to which graph."""
    result = call()
    lowered = watch.find_lowered(graph)
    if lowered is not None and watch.values:
        watch.compiled[id(compiled)] = watch.keys[id(graph)]
        lowered.program = str(getattr(compiled, "source_code", ""))
        recording = getattr(compiled, "cudagraph_info", None)
        lowered.cudagraphs = recording is not None and not recording.cudagraph_fail_reasons
    return result


@_with_call
def wrap_compiled_call(watch: LoweringWatch, call: Function, compiled: Any, inputs: Any) -> object:
    """Keep what a compiled graph returns and what it left in its inputs."""
    key, given = watch.compiled.get(id(compiled)), list(inputs)  # which the callee empties
    result = call()
    if key is not None:
        at_return(key, given, result)
    return result


@_with_call
def wrap_cpp_compile(watch: LoweringWatch, call: Function, compiler: Any, argument_types: Any, source: str) -> object:
    """Record which kernel's C++ a compiler refuses: of the same code, apart from the names that are filled in."""

    def is_source_of(kernel: str, generated: str) -> bool:
        body = generated.partition("{")[2].replace("#pragma CMT", "//").strip()
        return bool(body) and body in source

    with _record_refusal(watch, is_source_of):
        return call()


@_with_call
def wrap_triton_compile(watch: LoweringWatch, call: Function, compiler: Any, kernel_name: str, source: str) -> object:
    """Record which kernel Triton refuses."""
    with _record_refusal(watch, lambda kernel, generated: kernel == kernel_name or generated == source):
        return call()


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


def _wrap_writing(find_name: Callable[..., str]) -> Function:
    """Record that code is written for the operator that the arguments of the call name."""

    def replacement(watch: LoweringWatch, original: Function, *args: Any, **kwargs: Any) -> object:
        watch.operators.append(find_name(*args, **kwargs))  # they may be nested
        try:
            return original(*args, **kwargs)
        except Exception:  # re-raised: only noted here
            watch.raised_in = watch.raised_in or watch.operators[-1]
            raise
        finally:
            watch.operators.pop()

    return replacement


wrap_operator = _wrap_writing(lambda proxy, name, *args, **kwargs: str(name))
wrap_load = _wrap_writing(lambda *args, **kwargs: "load")
wrap_reduction = _wrap_writing(lambda proxy, dtype, source, kind, *args, **kwargs: f"reduction:{kind}")


@_with_call
def wrap_generate(watch: LoweringWatch, call: Function, cse: Any, buffer: Any, expression: Any) -> object:
    """Record the expression written for the innermost operator."""
    variable = call()
    try:
        if watch.values and watch.operators:
            text = expression.getvalue() if hasattr(expression, "getvalue") else str(expression)
            watch.statements.append(KernelStatement(str(variable), text, watch.operators[-1]))
    except Exception as error:  # the recorder never fails the compile that it watches
        watch.note(error)
    return variable


# Flags of the C++ compiler.


def _probe_flags() -> str | None:
    from torch._inductor.cpp_builder import CppTorchOptions

    with add_flags(("O0",)):
        known = CppTorchOptions().get_cflags()
    return None if "O0" in known else f"a flag that is added is missing from {known}"


FLAGS = ReplacedAttribute("torch._inductor.cpp_builder", "_get_ffast_math_flags", probe=_probe_flags)


@contextlib.contextmanager
def add_flags(flags: Sequence[str]) -> Iterator[None]:
    """Give the compiler these flags too, without the leading dash (``ffp-contract=off``); the last of two counts."""
    usual: Callable[[], list[str]] = getattr(FLAGS.find_owner(), FLAGS.leaf)
    # Of two equal flags Inductor keeps the first, and the compiler heeds the last of two that contradict each other.
    # A header that is compiled ahead holds for one set of flags, and takes 130 MB of the disk.
    headers = load_config("inductor").patch({"cpp_cache_precompile_headers": False})
    with headers, FLAGS.replace(lambda: [*(flag for flag in usual() if flag not in flags), *flags]):
        yield
