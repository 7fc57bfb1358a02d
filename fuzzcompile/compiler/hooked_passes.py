"""What replaces the functions through which Inductor runs passes and patterns while a compile is watched."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.recorder import Recorder

FUSION_PASSES = ("_pre_fusion_custom_pass", "_post_fusion_custom_pass")
_JOINT_PASS = "joint_custom_pass"


def wrap_observed_pass(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """A pass that runs under an observer, by which it has a name."""

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
    given = getattr(inductor_config(), setting, None)
    plain = function.func if isinstance(function, functools.partial) else function
    listed = given if isinstance(given, (list, tuple)) else (given,)
    return any(one is not None and (one is function or one is plain) for one in listed)


def inductor_config() -> Any:
    """Inductor's config module."""
    return importlib.import_module("torch._inductor.config")


def wrap_scheduler(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """The user's passes over the scheduler's nodes, which are no graph: seen and refused, not replayed."""

    def initialise(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        config = inductor_config()
        given = {name: getattr(config, name, None) for name in FUSION_PASSES}
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


def wrap_pattern_pass(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """A table of patterns is applied."""

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
    pass_name = recorder.pass_name or getattr(patterns, "pass_name", None)
    watched: list[_WatchedEntry] = []
    try:
        for listed in patterns.patterns.values():
            for entry in listed:
                if (
                    type(entry.extra_check) is not _WatchedEntry
                ):  # in several lists, or in a pass that runs itself again
                    watched.append(_WatchedEntry(recorder, entry, pass_name))
        yield
    finally:
        for one in watched:
            one.take_out()


class _WatchedEntry:
    """The check that an entry of a pattern table has while its table is applied; also puts an apply in its place.

    A veto belongs into the check and not into apply: the checks trace replacements and may raise themselves, and a
    match vetoed later would still be counted by passes that loop until nothing matches.
    """

    __slots__ = ("__wrapped_check__", "_apply", "_entry", "_label", "_own", "_pass_name", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, entry: Any, pass_name: str | None) -> None:
        self._recorder, self._entry, self._pass_name = recorder, entry, pass_name
        self._stage = recorder.stage_name
        self._label: Label | None = None
        self._own = entry.__dict__.get("apply")
        self.__wrapped_check__, self._apply = entry.extra_check, entry.apply
        entry.extra_check, entry.apply = self, self.apply

    def take_out(self) -> None:
        """Give the entry back what was its own."""
        self._entry.extra_check = self.__wrapped_check__
        if self._own is None:
            del self._entry.__dict__["apply"]
        else:
            self._entry.apply = self._own

    def label(self) -> Label:
        """Name of the entry, which costs a look into closures: made for those that match something."""
        if self._label is None:
            try:
                self._label = labels.entry_label(self._entry, self._stage, self._pass_name)
            except Exception as error:  # a kind of entry that no torch has had yet must not break the compile
                self._recorder.ledger.trouble.append(f"no name for a pattern entry: {error}"[:300])
                self._label = Label(self._stage, self._pass_name, type(self._entry).__name__)
        return self._label

    def __call__(self, match: Any) -> Any:
        label = self.label()
        if self._recorder.refuses(label):
            return False
        with self._recorder.blame(label):
            accepted = self.__wrapped_check__(match)
        if not accepted:
            self._recorder.count(label, "refused")
        return accepted

    def apply(self, match: Any, graph: fx.Graph, node: fx.Node) -> None:
        """Apply the rewrite and record it."""
        self._recorder.apply_pattern(self.label(), match, node, lambda: self._apply(match, graph, node))


def wrap_dead_code(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Dead code goes on everybody's behalf; where no pass is under way, the stage itself has it removed."""

    def eliminate(graph: fx.Graph, *args: Any, **kwargs: Any) -> Any:
        if recorder.in_pass or not recorder.owns(graph):
            return original(graph, *args, **kwargs)
        label = labels.pass_label(original, recorder.stage_name, "eliminate_dead_code")
        if recorder.refuses(label):
            return False
        with recorder.whole_pass(label, plain=True):
            return original(graph, *args, **kwargs)

    return eliminate


@contextlib.contextmanager
def custom_passes(recorder: Recorder) -> Iterator[None]:
    """See the pass over the joint graph that functorch's config has room for."""
    config = importlib.import_module("torch._functorch.config")
    given = getattr(config, _JOINT_PASS, None)
    if not callable(given):
        yield
        return
    label = labels.callable_label(given, "joint_graph", _JOINT_PASS)

    def joint_pass(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if recorder.refuses(label):
            return module
        before, recorder.direction = recorder.direction, "joint"
        try:
            with recorder.stage("joint_graph", module) as finish:
                with recorder.whole_pass(label):
                    result = given(module, *args, **kwargs)
                    recorder.handed_on(module, result)
                finish(result)
        finally:
            recorder.direction = before
        return result

    with config.patch({_JOINT_PASS: joint_pass}):
        yield
