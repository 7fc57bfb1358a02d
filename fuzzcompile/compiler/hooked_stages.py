"""What replaces the functions of Inductor that begin and end its stages while a compile is watched."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.ledger import Call, Frame, Label
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.compiler.screening import screened

COMPILE_FX = "torch._inductor.compile_fx"
_PARTITIONER = "min_cut_rematerialization_partition"


def wrap_compile_fx(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The backend's entry: one captured graph, from dynamo to the callable that runs it."""

    def compile_fx(model: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.frame is not None:  # Inductor calls itself with other settings: still the same graph
            return original(model, example_inputs, *args, **kwargs)
        frame = Frame(len(recorder.ledger.frames))
        recorder.ledger.frames.append(frame)
        recorder.capture_parameters(frame, _parameters(model))
        inner = kwargs.pop("inner_compile", None) or _compile_fx_inner()
        if recorder.screen:
            inner = functools.partial(screened, opaque=recorder.opaque)
        recorder.frame = frame
        try:
            compiled = original(
                model, example_inputs, *args, inner_compile=_watched_inner(recorder, frame, inner), **kwargs
            )
        except _restart_analysis():  # dynamo throws this attempt away and captures the graph anew
            recorder.ledger.frames.pop()
            raise
        finally:
            recorder.frame = None
        return _captured(recorder, compiled, frame.dynamo_calls)

    return compile_fx


def _parameters(model: Any) -> list[torch.Tensor]:
    """Parameters and buffers in the order in which AOTAutograd makes inputs of them."""
    if not isinstance(model, fx.GraphModule):
        return []
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return [tensor for _, tensor in named]


def _restart_analysis() -> type[BaseException]:
    return importlib.import_module("torch._dynamo.exc").RestartAnalysis  # type: ignore[no-any-return]


def _compile_fx_inner() -> Callable[..., Any]:
    return importlib.import_module("torch._inductor.compile_fx").compile_fx_inner  # type: ignore[no-any-return]


def _watched_inner(recorder: Recorder, frame: Frame, inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def inner_compile(module: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        backward = bool(kwargs.get("is_backward"))
        before = recorder.frame, recorder.direction
        recorder.frame = frame
        recorder.direction = "backward" if backward else "inference" if kwargs.get("is_inference") else "forward"
        try:
            with recorder.blame(Label("lowering", None, "lowering")):
                compiled = inner(module, example_inputs, **kwargs)
        finally:
            recorder.frame, recorder.direction = before
        calls = frame.backward_calls if backward else frame.forward_calls
        if hasattr(compiled, "current_callable"):
            compiled.current_callable = _captured(recorder, compiled.current_callable, calls)
            return compiled
        return _captured(recorder, compiled, calls)

    return inner_compile


def _captured(recorder: Recorder, function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    """Keep copies of what ``function`` is called with, made before it can mutate or free its arguments.

    Boxed calls take one list, which the callee empties. What a call looks like tells which it is: what
    AOTAutograd returns to dynamo is marked ``_boxed_call`` and takes plain arguments all the same.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        boxed = len(args) == 1 and isinstance(args[0], list)
        recorder.capture(calls, args[0] if boxed else args)
        return function(*args)

    return call


# -- stages -----------------------------------------------------------------------------------------


def wrap_pre_grad(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The passes over dynamo's graph."""

    def passes(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("pre_grad", module) as finish:
            result = original(module, *args, **kwargs)
            finish(result)
        return result

    return passes


def wrap_joint(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The passes over the joint graph, or over the only graph where nothing is differentiated."""

    def passes(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        before = recorder.direction
        recorder.direction = "joint" if _has_tangents(module) else "inference"
        try:
            with recorder.stage("joint_graph", module) as finish:
                result = original(module, *args, **kwargs)
                finish(result)
        finally:
            recorder.direction = before
        return result

    return passes


def wrap_post_grad(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The passes over a graph that will be lowered."""

    def passes(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("post_grad", module) as finish:
            result = original(module, *args, **kwargs)
            finish(module)
        return result

    return passes


def wrap_freezing(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """``freeze(dynamo_graph, graph, inputs)``: what Inductor does once parameters are constants."""

    def freeze(dynamo_graph: Any, module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("freezing", module) as finish:
            result = original(dynamo_graph, module, *args, **kwargs)
            finish(result[0])
        return result

    return freeze


def wrap_weights_layout(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Weights of convolutions get the layout that the kernels want, before they are frozen."""

    def convert(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("freezing", module) as finish:
            result = original(module, *args, **kwargs)
            finish(module)
        return result

    return convert


def wrap_frozen_parameters(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Parameters become constants: the graph has other inputs from here on."""

    def replace(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if not recorder.owns(module):
            return original(module, *args, **kwargs)
        recorder.between()
        label = labels.pass_label(original, recorder.stage_name, "replace_params_with_constants")
        with recorder.blame(label):
            result = original(module, *args, **kwargs)
        recorder.begin_again()
        return result

    return replace


def wrap_partition(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The joint graph is cut into a forward and a backward graph."""

    def partition(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        custom = getattr(importlib.import_module("torch._inductor.config"), "custom_partitioner_fn", None)
        function = custom or getattr(importlib.import_module(COMPILE_FX), _PARTITIONER, original)
        label = labels.callable_label(function, "partition", None)
        with recorder.blame(label):
            result = original(module, *args, **kwargs)
        recorder.partitioned(label, result)
        return result

    return partition


def _has_tangents(module: fx.GraphModule) -> bool:
    return any(str(node.target).startswith("tangents_") for node in module.graph.find_nodes(op="placeholder"))
