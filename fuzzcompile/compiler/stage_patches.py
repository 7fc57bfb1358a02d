"""Wrappers of the functions of Inductor that begin and end its stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import fx

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.ledger import Call, Direction, Frame, Label, Snapshot
from fuzzcompile.compiler.partitioning import partitioner_in_use
from fuzzcompile.compiler.patching import Function, contained
from fuzzcompile.compiler.recorder import Recorder, has_tangents
from fuzzcompile.compiler.replay import NotReplayable, interpret
from fuzzcompile.compiler.screening import screened
from fuzzcompile.compiler.target.process import described, moved_to_target
from fuzzcompile.compiler.unseen import Unseen
from fuzzcompile.stage_names import FREEZING, GRAPH_STAGES, JOINT_GRAPH, LOWERING, PARTITION, POST_GRAD, PRE_GRAD


def wrap_compile_fx(recorder: Recorder, original: Function) -> Function:
    """The backend's entry: one captured graph, from dynamo to the callable that runs it."""

    def compile_fx(model: object, example_inputs: object, *args: object, **kwargs: object) -> object:
        if recorder.frame is not None:  # Inductor calls itself with other settings: still the same graph
            return original(model, example_inputs, *args, **kwargs)
        frame = Frame(len(recorder.ledger.frames))
        recorder.ledger.frames.append(frame)
        recorder.capture_parameters(frame, _parameters(model))
        inner = cast(Function, kwargs.pop("inner_compile", None) or _compile_fx_inner())
        if recorder.screen:
            inner = functools.partial(screened, opaque=recorder.opaque)
        recorder.frame = frame
        try:
            with described():
                inputs = moved_to_target(model, example_inputs)
                compiled = original(
                    model, inputs, *args, inner_compile=_watched_inner(recorder, frame, inner), **kwargs
                )
        except _restart_analysis():  # dynamo throws this attempt away and captures the graph anew
            recorder.ledger.frames.pop()
            raise
        finally:
            recorder.frame = None
        if _ahead_of_time():
            return _files(recorder, compiled)
        return _captured(recorder, cast(Function, compiled), frame.dynamo_calls)

    return compile_fx


def _ahead_of_time() -> bool:
    from torch._inductor.virtualized import V

    return bool(V.aot_compilation)


def _files(recorder: Recorder, compiled: object) -> object:
    """The files that AOTInductor made; of a screen, none, and the recorder keeps what interprets the graph."""
    from torch._inductor.output_code import CompiledAOTI

    if isinstance(compiled, CompiledAOTI):
        return compiled
    recorder.interpreter = cast("Callable[..., object]", compiled)
    return CompiledAOTI(filename=[], device_type="cpu")


def _parameters(model: object) -> list[torch.Tensor]:
    """Parameters and buffers in the order in which AOTAutograd makes inputs of them."""
    if not isinstance(model, fx.GraphModule):
        return []
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return [tensor for _, tensor in named]


def _restart_analysis() -> type[BaseException]:
    from torch._dynamo.exc import RestartAnalysis

    return RestartAnalysis


def _compile_fx_inner() -> Function:
    from torch._inductor.compile_fx import compile_fx_inner

    return compile_fx_inner


def _watched_inner(recorder: Recorder, frame: Frame, inner: Function) -> Function:
    def compiled_by(attempt: Function, module: fx.GraphModule, example_inputs: object, **kwargs: object) -> object:
        backward = bool(kwargs.get("is_backward"))
        before = recorder.frame, recorder.direction
        recorder.frame = frame
        recorder.direction = "backward" if backward else "inference" if kwargs.get("is_inference") else "forward"
        try:
            with recorder.blame(Label(LOWERING, None, LOWERING)):
                compiled = attempt(module, example_inputs, **kwargs)
            final = _final_graph(frame, recorder.direction)
        finally:
            recorder.frame, recorder.direction = before
        if _ahead_of_time():
            return compiled  # files, which run elsewhere
        calls = frame.backward_calls if backward else frame.forward_calls
        if hasattr(compiled, "current_callable"):
            exact = _exact_on_demand(recorder, final, compiled.current_callable)
            compiled.current_callable = _captured(recorder, exact, calls)
            return compiled
        return _captured(recorder, _exact_on_demand(recorder, final, cast(Function, compiled)), calls)

    @functools.wraps(inner)
    def inner_compile(module: fx.GraphModule, example_inputs: object, **kwargs: object) -> object:
        def run(attempt: Function) -> object:
            return compiled_by(attempt, module, example_inputs, **kwargs)

        return contained(recorder, _no_calls, run, inner, module, example_inputs, **kwargs)

    return inner_compile


def _final_graph(frame: Frame, direction: Direction) -> Snapshot | None:
    """The graph of that direction as it was lowered last; None if it was not recorded."""
    records = [record for record in frame.records if (record.stage, record.direction) == (POST_GRAD, direction)]
    return records[-1].snapshots[-1] if records and records[-1].snapshots else None


def _exact_on_demand(recorder: Recorder, final: Snapshot | None, function: Function) -> Function:
    """``function``, or ``final`` interpreted in float64 on the same arguments while ``recorder.exact`` holds."""

    @functools.wraps(function)
    def call(*args: object) -> object:
        if not recorder.exact:
            return function(*args)
        if final is None:
            raise NotReplayable("the graph was not recorded")
        inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        return list(cast(Sequence[object], interpret(final, cast(Sequence[object], inputs), double=True)))

    return call


def _no_calls(why: str) -> Unseen:
    return Unseen("calls of compiled graphs", why, GRAPH_STAGES, "inputs of compiled graphs")


def _captured(recorder: Recorder, function: Function, calls: list[Call]) -> Function:
    """Keep copies of what ``function`` is called with, made before it can mutate or free its arguments.

    Boxed calls take one list, which the callee empties. What a call looks like tells which it is: what
    AOTAutograd returns to dynamo is marked ``_boxed_call`` and takes plain arguments all the same.
    """

    @functools.wraps(function)
    def call(*args: object) -> object:
        def run(attempt: Function) -> object:
            inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args
            recorder.capture(calls, inputs)
            with described():
                return attempt(*args)

        return contained(recorder, _no_calls, run, function, *args)

    return call


# -- stages -----------------------------------------------------------------------------------------


def _graph_returned(module: fx.GraphModule, result: object) -> object:
    return result


def _graph_given(module: fx.GraphModule, result: object) -> object:
    return module


def _stage(name: str, final: Callable[[fx.GraphModule, object], object]) -> Callable[[Recorder, Function], Function]:
    def wrap(recorder: Recorder, original: Function) -> Function:
        def passes(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
            with recorder.stage(name, module) as finish:
                result = original(module, *args, **kwargs)
                finish(final(module, result))
            return result

        return passes

    return wrap


wrap_pre_grad = _stage(PRE_GRAD, _graph_returned)
"""The passes over dynamo's graph."""
wrap_post_grad = _stage(POST_GRAD, _graph_given)
"""The passes over a graph that will be lowered."""
wrap_weights_layout = _stage(FREEZING, _graph_given)
"""Weights of convolutions get the layout that the kernels want, before they are frozen."""


def wrap_joint(recorder: Recorder, original: Function) -> Function:
    """The passes over the joint graph, or over the only graph where nothing is differentiated."""

    def passes(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        direction: Direction = "joint" if has_tangents(module) else "inference"
        with recorder.facing(direction), recorder.stage(JOINT_GRAPH, module) as finish:
            result = original(module, *args, **kwargs)
            finish(result)
        return result

    return passes


def wrap_freezing(recorder: Recorder, original: Function) -> Function:
    """``freeze(dynamo_graph, graph, inputs)``: what Inductor does once parameters are constants."""

    def freeze(dynamo_graph: object, module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        with recorder.stage(FREEZING, module) as finish:
            result = original(dynamo_graph, module, *args, **kwargs)
            finish(result[0] if isinstance(result, tuple) else result)
        return result

    return freeze


def wrap_frozen_parameters(recorder: Recorder, original: Function) -> Function:
    """Parameters become constants: the graph has other inputs from here on."""

    def replace(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        if not recorder.owns(module):
            return original(module, *args, **kwargs)
        recorder.between()
        label = labels.pass_label(original, recorder.stage_name, "replace_params_with_constants")
        with recorder.blame(label):
            result = original(module, *args, **kwargs)
        recorder.begin_again()
        return result

    return replace


def wrap_partition(recorder: Recorder, original: Function) -> Function:
    """The joint graph is cut into a forward and a backward graph."""

    def partition(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        label = labels.callable_label(partitioner_in_use() or original, PARTITION, None)
        with recorder.partition(module), recorder.blame(label):
            result = original(module, *args, **kwargs)
        recorder.partitioned(label, cast(Iterable[fx.GraphModule], result))
        return result

    return partition
