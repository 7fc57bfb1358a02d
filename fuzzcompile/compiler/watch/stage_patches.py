"""Wrappers of the functions that begin and end Inductor's stages, screening, and counts of rules reached."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.graph_replay import NotReplayable, interpret_graph
from fuzzcompile.compiler.target.target_process import describe_target, move_to_target
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.aot_autograd import find_partitioner
from fuzzcompile.compiler.watch.ledger import (
    CallInputs,
    Frame,
    Label,
    Ledger,
    Opaque,
    ReachedRule,
    Snapshot,
    take_snapshot,
)
from fuzzcompile.compiler.watch.recorder import Recorder, has_tangents
from fuzzcompile.compiler.watch.torch_patch import Function, contain_errors
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.stages import (
    DECOMPOSITION,
    GRAPH_STAGES,
    JOINT_GRAPH,
    LOWERING,
    PARTITION,
    POST_GRAD,
    PRE_GRAD,
    SCHEDULER,
)

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler


# Screening: all of Inductor's graph passes, and an interpreter in place of its code generator.


def compile_screened(
    module: fx.GraphModule, example_inputs: Sequence[torch.Tensor], *, opaque: Mapping[int, Opaque], **kwargs: object
) -> object:
    """An ``inner_compile`` that stops after the post-grad passes and returns a boxed interpreter."""
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.virtualized import V

    # As torch._inductor.compile_fx does up to there: views become reshapes, fake tensors are propagated. The passes run
    # under the graph's fake mode and no other: under AOTAutograd's own, which is active when it calls the compiler,
    # what a pass computes for itself would be fake too.
    with _disable_current_modes(), DebugContext():
        compile_fx.view_to_reshape(module)  # type: ignore[attr-defined, no-untyped-call]
        with torch.no_grad():
            fake_mode = compile_fx.fake_tensor_prop(module, list(example_inputs))
        with V.set_fake_mode(fake_mode):
            compile_fx._recursive_post_grad_passes(module, is_inference=bool(kwargs.get("is_inference")))
    snapshot = take_snapshot(module, opaque)
    return make_boxed_func(lambda *inputs: interpret_graph(snapshot, inputs))


def wrap_compile_fx(
    recorder: Recorder, original: Function, model: object, example_inputs: object, *args: object, **kwargs: object
) -> object:
    """The backend's entry: one captured graph, from dynamo to the callable that runs it."""
    from torch._dynamo.exc import RestartAnalysis
    from torch._inductor.compile_fx import compile_fx_inner

    if recorder.frame is not None:  # Inductor calls itself with other settings: still the same graph
        return original(model, example_inputs, *args, **kwargs)
    frame = Frame(len(recorder.ledger.frames))
    recorder.ledger.frames.append(frame)
    if isinstance(model, fx.GraphModule):  # in the order in which AOTAutograd makes inputs of them
        named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        recorder.capture_parameters(frame, [tensor for _, tensor in named])
    inner = cast(Function, kwargs.pop("inner_compile", None) or compile_fx_inner)
    if recorder.screen:
        inner = functools.partial(compile_screened, opaque=recorder.opaque)
    recorder.frame = frame
    try:
        with recorder.leave_stages(), describe_target():
            inputs = move_to_target(model, example_inputs)
            compiled = original(model, inputs, *args, inner_compile=_watch_inner(recorder, frame, inner), **kwargs)
    except RestartAnalysis:  # dynamo throws this attempt away and captures the graph anew
        recorder.ledger.frames.pop()
        raise
    finally:
        recorder.frame = None
    if _is_ahead_of_time():
        from torch._inductor.output_code import CompiledAOTI

        if isinstance(compiled, CompiledAOTI):
            return compiled
        # Of a screen there are no files, and the recorder keeps what interprets the graph.
        recorder.interpreter = cast("Callable[..., object]", compiled)
        return CompiledAOTI(filename=[], device_type="cpu")
    return _capture_calls(recorder, cast(Function, compiled), frame.dynamo_calls)


def watch_backend(recorder: Recorder, label: Label, backend: Function) -> Function:
    """A backend of the user's own, which may change dynamo's graph; refused, it leaves the graph to eager mode."""

    def compile_graph(original: Function, module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        if recorder.refuses(label, container=True):
            return module.forward
        with recorder.record_backend(label, module) as frame:
            compiled = original(module, *args, **kwargs)
        changes = any(record.rewrites for record in frame.records)
        return _capture_calls(recorder, cast(Function, compiled), frame.dynamo_calls) if changes else compiled

    def make_unseen(why: str) -> Unseen:
        return Unseen("own backend", why, (PRE_GRAD,), "changes of dynamo's graph by a backend")

    return contain_errors(recorder, make_unseen, compile_graph, backend)


def _is_ahead_of_time() -> bool:
    from torch._inductor.virtualized import V

    return bool(V.aot_compilation)


def _watch_inner(recorder: Recorder, frame: Frame, inner: Function) -> Function:
    def run_inner(attempt: Function, module: fx.GraphModule, example_inputs: object, **kwargs: object) -> object:
        backward = bool(kwargs.get("is_backward"))
        before = recorder.frame, recorder.direction
        recorder.frame = frame
        recorder.direction = "backward" if backward else "inference" if kwargs.get("is_inference") else "forward"
        try:
            with recorder.blame(Label(LOWERING, None, LOWERING)):
                compiled = attempt(module, example_inputs, **kwargs)
            lowered = [
                each for each in frame.records if (each.stage, each.direction) == (POST_GRAD, recorder.direction)
            ]
            # The graph as it was lowered last; None if it was not recorded.
            final = lowered[-1].snapshots[-1] if lowered and lowered[-1].snapshots else None
        finally:
            recorder.frame, recorder.direction = before
        if _is_ahead_of_time():
            return compiled  # files, which run elsewhere
        held: Function | None = getattr(compiled, "current_callable", None)
        exact = _make_exact_on_demand(recorder, frame, final, held or cast(Function, compiled))
        watched = _capture_calls(recorder, exact, frame.backward_calls if backward else frame.forward_calls)
        if held is None:
            return watched
        setattr(compiled, "current_callable", watched)  # noqa: B010 - of a compiled graph
        return compiled

    return contain_errors(recorder, _make_calls_unseen, run_inner, inner)


def _make_exact_on_demand(recorder: Recorder, frame: Frame, final: Snapshot | None, function: Function) -> Function:

    @functools.wraps(function)
    def call(*args: object) -> object:
        if not recorder.exact:
            return _tell_apart(recorder, frame, function(*args))
        if final is None:
            raise NotReplayable("the graph was not recorded")
        inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        return list(cast(Sequence[object], interpret_graph(final, cast(Sequence[object], inputs), double=True)))

    return call


def _make_calls_unseen(why: str) -> Unseen:
    return Unseen("calls of compiled graphs", why, GRAPH_STAGES, "inputs of compiled graphs")


def _tell_apart(recorder: Recorder, frame: Frame, results: object) -> object:
    """What a compiled graph gives; on demand, with a tensor of its own in each place."""
    if not isinstance(results, (list, tuple)):
        return results
    addresses = [id(value) for value in results if isinstance(value, torch.Tensor)]
    frame.repeats_outputs |= len(set(addresses)) < len(addresses)
    if not recorder.distinct:
        return results
    return type(results)(value.detach() if isinstance(value, torch.Tensor) else value for value in results)


def _capture_calls(recorder: Recorder, function: Function, calls: list[CallInputs]) -> Function:
    """Keep copies of what ``function`` is called with, made before it can mutate or free its arguments.

    Boxed calls take one list. What AOTAutograd returns is marked ``_boxed_call``, and takes plain arguments all the
    same.
    """

    def run(original: Function, *args: object) -> object:
        inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        recorder.capture(calls, inputs)
        with describe_target():
            return original(*args)

    return contain_errors(recorder, _make_calls_unseen, run, function)


# -- stages -----------------------------------------------------------------------------------------


def record_stage(stage: str, *, in_place: bool = False, position: int = 0) -> Callable[..., object]:
    """What runs in the place of a stage, whose graph at that position it changes ``in_place`` or gives back, first."""

    def run(recorder: Recorder, original: Function, *args: object, **kwargs: object) -> object:
        module = cast(fx.GraphModule, args[position])
        direction = recorder.direction
        if stage == JOINT_GRAPH:  # or the only graph, where nothing is differentiated
            direction = "joint" if has_tangents(module) else "inference"
        with recorder.set_direction(direction), recorder.record_stage(stage, module) as finish:
            result = original(*args, **kwargs)
            finish(module if in_place else result[0] if isinstance(result, tuple) else result)
        return result

    return run


def wrap_frozen_parameters(
    recorder: Recorder, original: Function, module: fx.GraphModule, *args: object, **kwargs: object
) -> object:
    """Parameters become constants: the graph has other inputs from here on."""
    if not recorder.owns(module):
        return original(module, *args, **kwargs)
    recorder.record_change()
    label = rule_labels.make_pass_label(original, recorder.stage_name, "replace_params_with_constants")
    with recorder.blame(label):
        result = original(module, *args, **kwargs)
    recorder.restart_record()
    return result


def wrap_partition(
    recorder: Recorder, original: Function, module: fx.GraphModule, *args: object, **kwargs: object
) -> object:
    """The joint graph is cut into a forward and a backward graph."""
    label = rule_labels.make_callable_label(find_partitioner() or original, PARTITION, None)
    with recorder.record_partition(module), recorder.blame(label):
        result = original(module, *args, **kwargs)
    recorder.record_parts(label, cast(Iterable[fx.GraphModule], result))
    return result


# Coverage of one compile beyond the rewrites: decompositions, lowerings, and shapes of fused kernels.

# Kernels of more equal nodes than this are counted as one shape for each power of two.
_EXACT = 4


def count_decompositions(ledger: Ledger, original: Function) -> object:
    """Have every decomposition that Inductor hands to AOTAutograd count its calls."""
    table = cast("Mapping[OpOverload, Function]", original())
    _counting[:] = [weakref.ref(ledger)]
    return {operator: _count_calls(operator, function) for operator, function in table.items()}


# The ledger that decompositions are counted in: wrapping a thousand functions anew for every compile would show.
_counting: list[weakref.ref[Ledger]] = []
_wrapped: dict[OpOverload, tuple[Function, Function]] = {}


def _count_calls(operator: OpOverload, function: Function) -> Function:
    known = _wrapped.get(operator)
    if known is not None and known[0] is function:
        return known[1]
    reached = ReachedRule(DECOMPOSITION, str(operator), "fired")

    def decompose(*args: object, **kwargs: object) -> object:
        result = function(*args, **kwargs)
        ledger = _counting[0]() if _counting and result is not NotImplemented else None
        if ledger is not None:
            ledger.reached[reached] += 1
        return result

    decompose.__name__ = getattr(function, "__name__", str(operator))
    _wrapped[operator] = function, decompose
    return decompose


def count_lowerings(
    ledger: Ledger, original: Function, graph: GraphLowering, target: Function, args: object, kwargs: object
) -> object:
    """Count lowerings, and calls of operators that have none."""
    result = original(graph, target, args, kwargs)
    if hasattr(target, "_schema") and hasattr(target, "_overloadname"):
        from torch._inductor.lowering import lowerings

        fallback = getattr(lowerings.get(target), "_is_fallback_handler", False)
        ledger.reached[ReachedRule(LOWERING, str(target), "fallback" if fallback else "fired")] += 1
    return result


def count_kernels(ledger: Ledger, original: Function, scheduler: Scheduler, *args: object, **kwargs: object) -> object:
    """Count the kernels of the scheduler's final list by their shapes."""
    result = original(scheduler, *args, **kwargs)
    for shape in filter(None, map(describe_kernel, scheduler.nodes)):
        ledger.reached[ReachedRule(SCHEDULER, shape, "fired")] += 1
    return result


def describe_kernel(node: BaseSchedulerNode) -> str:
    """Describe the computation of a node of the scheduler's final list, as ``Pointwise*2 + Reduction(sum)``.

    Numbers up to four are exact, and then powers of two (``Pointwise*8``: five to eight). Calls of libraries are
    ``extern(aten.mm)``, templates ``CppTemplateBuffer(CppGemmTemplate)``; what is no kernel is the empty string.
    """
    kind = type(node).__name__
    inner = list(node.get_nodes()) if hasattr(node, "get_nodes") else [node]
    if kind.startswith("ExternKernel"):
        if type(node.node).__name__ == "MultiOutput":  # takes one of several results of a kernel
            return ""
        name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
        return f"extern({str(name).removeprefix('torch.ops.').removeprefix('extern_kernels.')})"
    counts = Counter(_describe_loop(part) for part in inner if not type(part).__name__.startswith("NopKernel"))
    rounded = {name: count if count <= _EXACT else 1 << (count - 1).bit_length() for name, count in counts.items()}
    parts = [name if count == 1 else f"{name}*{count}" for name, count in sorted(rounded.items())]
    special = kind not in ("SchedulerNode", "FusedSchedulerNode")
    shape = " + ".join(parts)
    return f"{kind.removesuffix('SchedulerNode')}: {shape}" if special and shape else shape


def _describe_loop(node: BaseSchedulerNode) -> str:
    data = getattr(getattr(node, "node", None), "data", None)
    if data is None:
        buffer = getattr(node, "node", node)
        template = getattr(buffer, "template", None)
        return f"{type(buffer).__name__}({type(template).__name__})" if template else type(buffer).__name__
    reduction = getattr(data, "reduction_type", None)
    return f"{type(data).__name__}({reduction})" if reduction else type(data).__name__
