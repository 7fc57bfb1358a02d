"""Where fuzzcompile holds on to Inductor: the functions it replaces while a compile is watched.

Each hook is named, so that a torch whose internals moved can be told apart by the hook it lacks
(:func:`missing_hooks`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuzzcompile.inductor import labels
from fuzzcompile.inductor.ledger import Call, Frame, Label
from fuzzcompile.inductor.recorder import Recorder
from fuzzcompile.inductor.screening import screened


@dataclass(frozen=True)
class Hook:
    """An attribute of a torch module (or of a class in it) that is wrapped while a compile is watched."""

    name: str
    module: str
    attribute: str
    wrap: Callable[[Recorder, Callable[..., Any]], Callable[..., Any]]

    def owner(self) -> Any:
        """The module or class that holds the attribute; raises ImportError or AttributeError without it."""
        owner: Any = importlib.import_module(self.module)
        for part in self.attribute.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def find(self) -> tuple[Any, str, Callable[..., Any]]:
        """Owner, attribute name and present value."""
        owner, leaf = self.owner(), self.attribute.rsplit(".", 1)[-1]
        return owner, leaf, getattr(owner, leaf)


def missing_hooks() -> list[str]:
    """Names of the hooks that the installed torch has no place for."""
    missing = []
    for hook in HOOKS:
        try:
            hook.find()
        except (ImportError, AttributeError):
            missing.append(hook.name)
    return missing


@contextlib.contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """Replace every hook's function for the time of the block.

    They stay through ``backward()``, which may compile. Hooks that this torch lacks are left out.
    """
    with contextlib.ExitStack() as stack:
        for hook in HOOKS:
            try:
                owner, leaf, original = hook.find()
            except (ImportError, AttributeError):
                continue
            setattr(owner, leaf, functools.wraps(original)(hook.wrap(recorder, original)))
            stack.callback(setattr, owner, leaf, original)
        yield


def initialise_patterns(device: torch.device) -> None:
    """Register Inductor's lazily registered patterns now.

    A ledger, plant or veto that comes first would see the tracing of the patterns themselves. Called as
    the compiler calls it, because the registration is cached by its arguments.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    for module, argument in ((joint_graph, device), (post_grad, None), (pre_grad, None)):
        lazy_init = getattr(module, "lazy_init", None)
        if lazy_init is None:
            continue
        if argument is not None and inspect.signature(lazy_init).parameters:
            lazy_init(argument)
        else:
            lazy_init()


# -- the whole of one graph: dynamo's call of the backend -------------------------------------------


def _wrap_compile_fx(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_fx(model: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.frame is not None:  # Inductor calls itself with other settings: still the same graph
            return original(model, example_inputs, *args, **kwargs)
        frame = Frame(len(recorder.ledger.frames))
        recorder.ledger.frames.append(frame)
        recorder.capture_parameters(frame, _parameters(model))
        inner = kwargs.pop("inner_compile", None) or _compile_fx_inner()
        if recorder.screen:
            inner = screened
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


def _wrap_pre_grad(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def passes(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("pre_grad", module) as finish:
            result = original(module, *args, **kwargs)
            finish(result)
        return result

    return passes


def _wrap_joint(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
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


def _wrap_post_grad(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def passes(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with recorder.stage("post_grad", module) as finish:
            result = original(module, *args, **kwargs)
            finish(module)
        return result

    return passes


def _has_tangents(module: fx.GraphModule) -> bool:
    return any(str(node.target).startswith("tangents_") for node in module.graph.find_nodes(op="placeholder"))


# -- passes and patterns ----------------------------------------------------------------------------


def _wrap_observed_pass(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(observer: Any, function: Callable[..., Any]) -> Any:
        if not recorder.owns(observer.gm):
            return original(observer, function)
        container = _is_pattern_table(function)
        if container:  # a user's config may hold the method as it was before the hooks were there
            function = _method_now(function)
        if not container and _is_custom(function, observer.passname):
            label = labels.callable_label(function, recorder.stage_name, observer.passname)
        else:
            label = labels.pass_label(function, recorder.stage_name, observer.passname)
        if recorder.refuses_pass(label, container=container):
            return None
        with recorder.whole_pass(label):
            return original(observer, function)

    return apply


def _is_custom(function: Any, setting: str) -> bool:
    """Whether ``function`` is what the user gave as the config entry ``setting``.

    Inductor runs a pass of its own under the name of one of these entries as well.
    """
    given = getattr(_inductor_config(), setting, None)
    plain = function.func if isinstance(function, functools.partial) else function
    listed = given if isinstance(given, (list, tuple)) else (given,)
    return any(one is not None and (one is function or one is plain) for one in listed)


def _inductor_config() -> Any:
    return importlib.import_module("torch._inductor.config")


def _wrap_scheduler(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The user's passes over the scheduler's nodes, which are no graph: seen and refused, not replayed."""

    def initialise(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        config = _inductor_config()
        given = {name: getattr(config, name, None) for name in _FUSION_PASSES}
        watched = {name: _watched_fusion(recorder, name, one) for name, one in given.items() if callable(one)}
        with config.patch(watched) if watched else contextlib.nullcontext():
            return original(scheduler, *args, **kwargs)

    return initialise


def _watched_fusion(recorder: Recorder, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    label = labels.callable_label(function, "scheduler", name)

    def fusion(nodes: Any) -> Any:
        if recorder.refuses(label):
            return nodes
        return recorder.apply_unreplayed(label, lambda: function(nodes))

    return fusion


def _wrap_pattern_pass(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(patterns: Any, graph: Any) -> Any:
        if not recorder.owns(graph):
            return original(patterns, graph)
        with _watched_entries(recorder, patterns):
            return original(patterns, graph)

    return apply


def _is_pattern_table(function: Any) -> bool:
    return hasattr(getattr(function, "__self__", None), "patterns")


def _method_now(method: Any) -> Callable[..., Any]:
    now: Callable[..., Any] = getattr(method.__self__, method.__name__)
    return now


@contextlib.contextmanager
def _watched_entries(recorder: Recorder, patterns: Any) -> Iterator[None]:
    """Give every entry of a pattern table a check and an apply that the recorder sees."""
    entries = {id(entry): entry for listed in patterns.patterns.values() for entry in listed}
    pass_name = recorder.pass_name or getattr(patterns, "pass_name", None)
    saved = [(entry, dict(entry.__dict__)) for entry in entries.values()]
    for entry in entries.values():
        if hasattr(entry.extra_check, "__wrapped_check__"):  # a pass that runs itself again
            continue
        _watch(recorder, entry, pass_name)
    try:
        yield
    finally:
        for entry, attributes in saved:
            entry.__dict__.clear()
            entry.__dict__.update(attributes)


def _watch(recorder: Recorder, entry: Any, pass_name: str | None) -> None:
    stage = recorder.stage_name
    check, apply = entry.extra_check, entry.apply

    @functools.cache
    def label() -> Label:
        try:
            return labels.entry_label(entry, stage, pass_name)
        except Exception as error:  # a kind of entry that no torch has had yet must not break the compile
            recorder.ledger.trouble.append(f"no name for a pattern entry: {error}"[:300])
            return Label(stage, pass_name, type(entry).__name__)

    def watched_check(match: Any) -> Any:
        # A veto belongs here and not in apply: the checks trace replacements and may raise themselves,
        # and a match vetoed later would still be counted by passes that loop until nothing matches.
        if recorder.refuses(label()):
            return False
        with recorder.blame(label()):
            accepted = check(match)
        if not accepted:
            recorder.count(label(), "refused")
        return accepted

    def watched_apply(match: Any, graph: fx.Graph, node: fx.Node) -> None:
        recorder.apply_pattern(label(), match, node, lambda: apply(match, graph, node))

    watched_check.__wrapped_check__ = check  # type: ignore[attr-defined]
    entry.extra_check, entry.apply = watched_check, watched_apply


_COMPILE_FX = "torch._inductor.compile_fx"
_FUSION_PASSES = ("_pre_fusion_custom_pass", "_post_fusion_custom_pass")
_OBSERVER = "torch.fx.passes.graph_transform_observer"
HOOKS = (
    Hook("backend entry", _COMPILE_FX, "compile_fx", _wrap_compile_fx),
    Hook("pre-grad stage", _COMPILE_FX, "_recursive_pre_grad_passes", _wrap_pre_grad),
    Hook("joint-graph stage", _COMPILE_FX, "_recursive_joint_graph_passes", _wrap_joint),
    Hook("post-grad stage", _COMPILE_FX, "_recursive_post_grad_passes", _wrap_post_grad),
    Hook("graph pass", _OBSERVER, "GraphTransformObserver.apply_graph_pass", _wrap_observed_pass),
    Hook("module pass", _OBSERVER, "GraphTransformObserver.apply_gm_pass", _wrap_observed_pass),
    Hook("pattern pass", "torch._inductor.pattern_matcher", "PatternMatcherPass.apply", _wrap_pattern_pass),
    Hook("fusion passes", "torch._inductor.scheduler", "Scheduler.__init__", _wrap_scheduler),
)
