"""Wrappers of the functions through which Inductor runs passes and patterns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import fx

from fuzzcompile.compiler import custom, labels
from fuzzcompile.compiler.configs import config_of
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.patching import Function, contained
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.compiler.refusals import explained, is_explained
from fuzzcompile.compiler.unseen import Unseen, reason
from fuzzcompile.stage_names import JOINT_GRAPH, SCHEDULER

if TYPE_CHECKING:
    from torch._inductor.pattern_matcher import Match, PatternEntry, PatternMatcherPass
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver

FUSION_PASSES = ("_pre_fusion_custom_pass", "_post_fusion_custom_pass")
JOINT_PASS = "joint_custom_pass"


def wrap_observed_pass(recorder: Recorder, original: Function) -> Function:
    """A pass that runs under an observer, by which it has a name."""

    def apply(observer: GraphTransformObserver, function: Function) -> object:
        if not recorder.owns(observer.gm):
            return original(observer, function)
        container, own = _is_pattern_table(function), custom.installed_pass(function)
        if container:  # a user's config may hold the method as it was before it was wrapped
            function = _method_now(function)
        if own is not None:
            label, container = own.label(recorder.stage_name), own.is_table
        elif not container and _is_custom(function, observer.passname):
            label = labels.callable_label(function, recorder.stage_name, observer.passname)
        else:
            label = labels.pass_label(function, recorder.stage_name, observer.passname)
        if recorder.refuses_pass(label, container=container):
            return None
        with recorder.whole_pass(label):
            return original(observer, function)

    return apply


def _is_custom(function: Function, setting: str) -> bool:
    """Return whether ``function`` is the user's value of the config entry ``setting``.

    Inductor runs a pass of its own under the name of one of these entries as well.
    """
    given = getattr(config_of("inductor"), setting, None)
    plain = function.func if isinstance(function, functools.partial) else function
    listed = given if isinstance(given, (list, tuple)) else (given,)
    return any(custom is not None and (custom is function or custom is plain) for custom in listed)


def wrap_scheduler(recorder: Recorder, original: Function) -> Function:
    """The user's passes over the scheduler's nodes, which are no graph: seen and refused, not replayed."""

    def initialise(scheduler: object, *args: object, **kwargs: object) -> object:
        config = config_of("inductor")
        given = {name: getattr(config, name, None) for name in FUSION_PASSES}
        watched = {
            name: _watched_fusion(recorder, name, function) for name, function in given.items() if callable(function)
        }
        with config.patch(watched) if watched else contextlib.nullcontext():
            return original(scheduler, *args, **kwargs)

    return initialise


def _watched_fusion(recorder: Recorder, name: str, function: Function) -> Function:
    label = labels.callable_label(function, SCHEDULER, name)

    def fusion(nodes: object) -> object:
        def run(attempt: Function) -> object:
            return nodes if recorder.refuses(label) else recorder.apply_unreplayed(label, lambda: attempt(nodes))

        return contained(recorder, _no_fusion_pass, run, function, nodes)

    return fusion


def _no_fusion_pass(why: str) -> Unseen:
    return Unseen("fusion pass", why, (SCHEDULER,), "passes over the scheduler's nodes")


def wrap_pattern_pass(recorder: Recorder, original: Function) -> Function:
    """A table of patterns is applied."""

    def apply(patterns: PatternMatcherPass, graph: fx.Graph | fx.GraphModule) -> object:
        if not recorder.owns(graph):
            return original(patterns, graph)
        with _watched_entries(recorder, patterns):
            return original(patterns, graph)

    return apply


def _is_pattern_table(function: Function) -> bool:
    return hasattr(getattr(function, "__self__", None), "patterns")


def _method_now(method: Function) -> Function:
    now: Function = getattr(method.__self__, method.__name__)  # type: ignore[attr-defined]  # a bound method
    return now


@contextlib.contextmanager
def _watched_entries(recorder: Recorder, patterns: PatternMatcherPass) -> Iterator[None]:
    """Give every entry of a pattern table a check and an apply that the recorder sees."""
    pass_name = recorder.pass_name or getattr(patterns, "pass_name", None)
    watched: list[_WatchedEntry] = []
    try:
        for entries in patterns.patterns.values():
            for entry in entries:
                # It may be in several lists, or in a pass that runs itself again.
                if type(entry.extra_check) is not _WatchedEntry:
                    watched.append(_WatchedEntry(recorder, entry, pass_name))
        yield
    finally:
        for watching in watched:
            watching.take_out()


class _WatchedEntry:
    """The check that an entry of a pattern table has while its table is applied; also puts an apply in its place.

    A veto belongs into the check and not into apply: the checks trace replacements and may raise themselves, and a
    match vetoed later would still be counted by passes that loop until nothing matches.
    """

    __slots__ = ("__wrapped_check__", "_apply", "_entry", "_label", "_own", "_pass_name", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, entry: PatternEntry, pass_name: str | None) -> None:
        self._recorder, self._entry, self._pass_name = recorder, entry, pass_name
        self._stage = recorder.stage_name
        self._label: Label | None = None
        self._own = entry.__dict__.get("apply")
        self.__wrapped_check__, self._apply = entry.extra_check, entry.apply
        entry.extra_check, entry.apply = self, self.apply  # type: ignore[method-assign]

    def take_out(self) -> None:
        """Give the entry back what was its own."""
        self._entry.extra_check = self.__wrapped_check__
        if self._own is None:
            del self._entry.__dict__["apply"]
        else:
            self._entry.apply = self._own  # type: ignore[method-assign]

    def label(self) -> Label:
        """Name of the entry, which costs a look into closures: made for those that match something."""
        if self._label is None:
            try:
                self._label = labels.entry_label(self._entry, self._stage, self._pass_name)
            except Exception as error:  # a kind of entry that no torch has had yet; it goes by its class instead
                self._recorder.missed(self._unseen(reason(error)), error)
                self._label = Label(self._stage, self._pass_name, type(self._entry).__name__)
        return self._label

    def __call__(self, match: Match) -> bool:
        def run(attempt: Function) -> bool:
            return self._check(attempt, match)

        return bool(contained(self._recorder, self._unseen, run, self.__wrapped_check__, match))

    def _check(self, check: Function, match: Match) -> bool:
        label = self.label()
        if self._recorder.refuses(label):
            return False
        with self._recorder.blame(label):
            explains = is_explained(label.stage, label.rewrite)
            accepted, why = explained(check, match) if explains else (bool(check(match)), "")
        if not accepted:
            self._recorder.count(label, "refused")
            self._recorder.ledger.checks.update([(label, why)] if why else ())
        return accepted

    def apply(self, match: Match, graph: fx.Graph, node: fx.Node) -> None:
        """Apply the rewrite and record it."""

        def run(attempt: Function) -> None:
            self._recorder.apply_pattern(self.label(), match, node, lambda: attempt(match, graph, node))

        contained(self._recorder, self._unseen, run, self._apply, match, graph, node)

    def _unseen(self, why: str) -> Unseen:
        return Unseen("pattern entry", why, (self._stage,), "names and matches of patterns")


def wrap_dead_code(recorder: Recorder, original: Function) -> Function:
    """Dead code that the stage itself has removed; inside a pass, it is part of the pass."""

    def eliminate(graph: fx.Graph, *args: object, **kwargs: object) -> object:
        if recorder.in_pass or not recorder.owns(graph):
            return original(graph, *args, **kwargs)
        label = labels.pass_label(original, recorder.stage_name, "eliminate_dead_code")
        if recorder.refuses(label):
            return False
        with recorder.whole_pass(label, plain=True):
            return original(graph, *args, **kwargs)

    return eliminate


def wrap_joint_pass(recorder: Recorder, original: Function) -> Function:
    """The user's pass over the joint graph that functorch's config has room for."""

    def joint_pass(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        label = labels.callable_label(original, JOINT_GRAPH, JOINT_PASS)
        if recorder.refuses(label):
            return module
        with recorder.facing("joint"), recorder.stage(JOINT_GRAPH, module) as finish:
            with recorder.whole_pass(label):
                result = original(module, *args, **kwargs)
                recorder.handed_on(module, result)
            finish(result)
        return result

    return joint_pass
