"""Follows one compile through Inductor's stages and writes the ledger; refuses vetoed rewrites."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.execution.tensors import KnownCopies, copy_tree
from fuzzcompile.inductor import labels
from fuzzcompile.inductor.ledger import (
    Call,
    Direction,
    Frame,
    GraphRecord,
    Label,
    Ledger,
    Opaque,
    Outcome,
    Rewrite,
    Site,
    Stage,
    attributes_of,
    fingerprint,
    is_handler,
    sub_graph,
    take_snapshot,
)

CAPTURED_CALLS = 2
_OUTSIDE = "outside any pass"
# Passes that later stages rely on: without them a graph cannot be lowered at all.
MANDATORY = frozenset(
    {
        "stable_sort",
        "remove_assert_ops",
        "remove_profiler_ops",
        "chain_random_ops_ordering",
        "fix_auto_functionalized_dtype_views",
        "decompose_triton_kernel_wrapper_functional",
        "decompose_auto_functionalized",
        "decompose_scan_to_while_loop",
        "decompose_map_to_while_loop",
        "fuse_seed_creation_pass",
        "move_constructors_to_cuda",
        "replace_random",
        "replace_randint",
    }
)


@dataclass
class _OpenStage:
    """A stage under way: the graph that the user will run, and the (sub)graph that is worked on now."""

    record: GraphRecord
    top: fx.GraphModule
    current: fx.GraphModule
    mark: int = 0


@dataclass
class Recorder:
    """State of one instrumented compile.

    Nothing here may raise into the compile that it watches: what goes wrong in the watching is noted in
    ``ledger.trouble``.
    """

    vetoed: Sequence[str] = ()
    only: Sequence[str] | None = None
    snapshots: bool = True
    screen: bool = False
    capturing: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    frame: Frame | None = None
    direction: Direction = "inference"
    _stages: list[_OpenStage] = field(default_factory=list)
    _passes: list[Label] = field(default_factory=list)
    _opaque: dict[int, Opaque] = field(default_factory=dict)
    _ordinals: Counter[tuple[str, str]] = field(default_factory=Counter)
    _blamed: BaseException | None = None
    _known: KnownCopies = field(default_factory=dict)  # parameters are inputs of every graph and of every call

    # -- stages ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stage(self, stage: Stage, module: fx.GraphModule) -> Iterator[Callable[[fx.GraphModule], None]]:
        """A stage works on ``module``; the yielded function takes the graph that the stage returns."""
        nested = bool(self._stages) and self._stages[-1].record.stage == stage
        if nested:
            outer = self._stages[-1].current
            self._stages[-1].current = module
            try:
                with self.blame(Label(stage, None, stage)):
                    yield lambda result: None
            finally:
                self._changed(None, (), None)
                self._stages[-1].current = outer
            return
        record = GraphRecord(stage, self.direction)
        if self.frame is not None:
            self.frame.records.append(record)
        opened = _OpenStage(record, module, module)
        self._stages.append(opened)
        self._mark(opened)

        def finish(result: fx.GraphModule) -> None:
            opened.top = opened.current = result
            self._changed(None, (), None)

        try:
            with self.blame(Label(stage, None, stage)):
                yield finish
        finally:
            self._stages.pop()

    def owns(self, graph: Any) -> bool:
        """Whether ``graph`` is the one that the present stage works on (not a pattern being traced)."""
        if not self._stages:
            return False
        current = self._stages[-1].current
        return graph is current or graph is current.graph

    # -- passes and patterns --------------------------------------------------------------------

    @contextlib.contextmanager
    def whole_pass(self, label: Label) -> Iterator[None]:
        """A pass runs; what it changes beyond the patterns inside it is its own rewrite."""
        self._changed(None, (), None)
        self._passes.append(label)
        try:
            with self.blame(label):
                yield
        finally:
            self._passes.pop()
            self._changed(label, (), None)

    @property
    def stage_name(self) -> str:
        """Name of the stage under way."""
        return self._stages[-1].record.stage if self._stages else "runtime"

    @property
    def pass_name(self) -> str | None:
        """Name of the innermost pass under way: of a user's own, the setting that it was given as."""
        return (self._passes[-1].pass_name or self._passes[-1].rewrite) if self._passes else None

    def refuses(self, label: Label) -> bool:
        """Whether this rewrite is vetoed, by name or because only others are wanted; counted if so."""
        unwanted = self.only is not None and label.rewrite not in MANDATORY and not labels.vetoes(label, self.only)
        if unwanted or labels.vetoes(label, self.vetoed):
            self.count(label, "vetoed")
            return True
        return False

    def refuses_pass(self, label: Label, *, container: bool) -> bool:
        """As :meth:`refuses` for a whole pass; a container of patterns is left to its patterns."""
        if self.only is not None and container and not labels.vetoes(label, self.vetoed):
            return False
        return self.refuses(label)

    def count(self, label: Label, outcome: Outcome) -> None:
        """Count what became of a match, for coverage."""
        self.ledger.coverage[label, outcome] += 1

    def apply_pattern(self, label: Label, match: Any, node: fx.Node, apply: Callable[[], None]) -> None:
        """Apply a pattern's rewrite and record what it did to the graph."""
        self._changed(None, (), None)
        if self._passes and self._passes[-1].rewrite != self._passes[-1].pass_name:
            self.ledger.inside[label] = self._passes[-1]
        nodes = [n for n in match.nodes if isinstance(n, fx.Node)]
        names, site = tuple(n.name for n in nodes), self._site(label, nodes)
        known = set(node.graph.nodes)
        opaque: Opaque | None = None
        with self._guarded():
            opaque = self._matched_graph(match, nodes, node)
        with self.blame(label):
            apply()
        if opaque is not None:
            self._keep_opaque(known, node.graph, opaque)
        self.count(label, "fired")
        self._changed(label, names, site)

    def apply_unreplayed(self, label: Label, apply: Callable[[], Any]) -> Any:
        """Run a rule that works on something else than a graph: it can be refused, and not replayed."""
        with self.blame(label):
            result = apply()
        self.ledger.unreplayed.append(label)
        self.count(label, "fired")
        return result

    def capture(self, calls: list[Call], inputs: Sequence[Any]) -> None:
        """Keep copies of the inputs of the first calls of a compiled graph."""
        if self.capturing and len(calls) < CAPTURED_CALLS:
            with self._guarded():
                calls.append(Call(copy_tree(list(inputs), known=self._known)))

    def capture_parameters(self, frame: Frame, parameters: Sequence[torch.Tensor]) -> None:
        """Keep copies of the parameters that a frame's graph holds itself."""
        if self.capturing:
            with self._guarded(), _disable_current_modes():
                frame.parameters.extend(copy_tree(list(parameters), known=self._known))

    # -- errors ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def blame(self, label: Label) -> Iterator[None]:
        """Whatever exception leaves this block first is laid at this label's door."""
        try:
            yield
        except BaseException as error:
            if self._blamed is None or self._blamed not in _chain(error):
                self.ledger.failed_in = label
            self._blamed = error
            raise

    # -- private --------------------------------------------------------------------------------

    def _mark(self, opened: _OpenStage) -> None:
        with self._guarded():
            opened.mark = fingerprint(opened.top)
            if self.snapshots:
                opened.record.snapshots.append(take_snapshot(opened.top, self._opaque, self._constants))

    def _changed(self, label: Label | None, nodes: tuple[str, ...], site: Site | None) -> None:
        """If the graph is not as it was at the last mark, write the rewrite down under ``label``."""
        if not self._stages:
            return
        opened = self._stages[-1]
        with self._guarded():
            now = fingerprint(opened.top)
            if now == opened.mark:
                return
            opened.mark = now
            record = opened.record
            if label is None:
                label = self._passes[-1] if self._passes else Label(record.stage, None, _OUTSIDE)
            if self.snapshots:
                record.snapshots.append(take_snapshot(opened.top, self._opaque, self._constants))
            last = len(record.snapshots) - 1
            record.rewrites.append(Rewrite(label, nodes, site, max(last - 1, 0), last))
            if not nodes:
                self.count(label, "fired")

    def _site(self, label: Label, nodes: list[fx.Node]) -> Site | None:
        site: Site | None = None
        with self._guarded():
            where = labels.location(nodes)
            if where is not None:
                key = (labels.family_of(label.rewrite), where)
                self._ordinals[key] += 1
                site = Site(where, self._ordinals[key])
        return site

    def _keep_opaque(self, known: set[fx.Node], graph: fx.Graph, opaque: Opaque) -> None:
        """Lowering patterns put one call of a Python handler in place of what they matched."""
        for created in graph.nodes:
            if created not in known and callable(created.target) and is_handler(created.target):
                self._opaque[id(created.target)] = opaque

    def _matched_graph(self, match: Any, nodes: list[fx.Node], node: fx.Node) -> Opaque | None:
        """The matched nodes as a graph; None if they use values that are no arguments of the match."""
        graph, feeds = sub_graph(nodes, node)
        flat = pytree.tree_leaves((tuple(match.args), match.kwargs))
        places = {id(argument): position for position, argument in reversed(list(enumerate(flat)))}
        if any(id(feed) not in places for feed in feeds):
            return None
        module = node.graph.owning_module
        attributes = attributes_of(graph, module, self._constants) if module is not None else {}
        return Opaque(graph, attributes, tuple(places[id(feed)] for feed in feeds))

    def _constants(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """What a graph holds itself, as it is now: a program that is run in place changes its frozen parameters."""
        plain = {name: value for name, value in attributes.items() if _is_plain(value)}
        with _disable_current_modes():
            return {**attributes, **copy_tree(plain, known=self._known)}

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.ledger.trouble.append(f"{type(error).__name__}: {error}"[:300])


def _is_plain(value: object) -> bool:
    """Whether it is a tensor with values in a storage: no fake one, none prepacked for a library."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided  # type: ignore[attr-defined]


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and those it wraps: the compiler re-raises what passes raise as errors of its own."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        item = pending.pop()
        if isinstance(item, BaseException) and item not in chain:
            chain.append(item)
            pending += [item.__cause__, item.__context__, getattr(item, "inner_exception", None)]
    return chain
