"""Recorder of one compile: follows Inductor's stages, writes the ledger, refuses vetoed rewrites."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import (
    CallInputs,
    Direction,
    Frame,
    GraphPartition,
    GraphRecord,
    GraphState,
    Label,
    Ledger,
    Opaque,
    Outcome,
    Rewrite,
    Site,
    collect_attributes,
    is_lowering_handler,
    take_snapshot,
)
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import JOINT_GRAPH, PARTITION, PRE_GRAD, RUNTIME
from fuzzcompile.run.tensors import KnownCopies, copy_tree, is_fake_class, is_plain, measure_storages

if TYPE_CHECKING:
    from torch._inductor.pattern_matcher import Match


MANDATORY = facts().passes.mandatory
"""Passes that later stages rely on: without them a graph cannot be lowered."""

_ALWAYS_RUN = MANDATORY | facts().passes.kept
# Calls of one compiled graph whose inputs are kept: the first ones always, later ones while they take little memory.
CAPTURED_CALLS = 8
_ALWAYS_CAPTURED = 2
_CAPTURED_BYTES = 64 * 2**20
_OUTSIDE = "outside any pass"


def has_tangents(module: fx.GraphModule) -> bool:
    """Return whether a graph takes gradients of outputs: a joint graph does, and a backward one."""
    return any(map(is_tangent, module.graph.find_nodes(op="placeholder")))


def is_tangent(placeholder: fx.Node) -> bool:
    """Return whether an input of a joint or backward graph is a gradient of an output, as AOTAutograd names it."""
    return str(placeholder.target).startswith("tangents_")


@dataclass
class _OpenStage:
    """A stage under way: the graph that the user will run, and the (sub)graph that is worked on now."""

    record: GraphRecord
    top: fx.GraphModule
    current: fx.GraphModule
    mark: GraphState | None = None
    around: Label | None = None  # what changes the graph outside of any pass, where that has a name


@dataclass
class Recorder:
    """State of one instrumented compile; what goes wrong in the watching is noted in ``ledger.unseen``."""

    vetoed: Sequence[str] = ()  # names of rewrites that are refused
    only: Sequence[str] | None = None  # names of those that alone may apply, beside the mandatory ones; None: all
    ledger: Ledger = field(default_factory=Ledger)
    snapshots: bool = True
    screen: bool = False
    capturing: bool = True
    exact: bool = False  # calls of compiled graphs interpret what would be lowered, in float64
    distinct: bool = False  # each output of a compiled graph is a tensor of its own
    exported: int = 0  # programs that torch.export captured
    interpreter: Callable[..., object] | None = None  # of the graph that AOTInductor would have compiled, in a screen
    frame: Frame | None = None
    direction: Direction = "inference"
    # What lowering patterns replaced, by the identity of the handler that stands there now.
    opaque: dict[int, Opaque] = field(default_factory=dict)
    _stages: list[_OpenStage] = field(default_factory=list)
    _passes: list[Label] = field(default_factory=list)
    # Patterns whose handlers run, the innermost last, with how many passes were under way when they began.
    _applied: list[tuple[int, Label, tuple[str, ...], Site | None]] = field(default_factory=list)
    _observed: int = 0  # how many of these are observed passes, or the user's
    _announced: Label | None = None  # made another graph, which its caller will put in the place of this one
    _ordinals: Counter[tuple[str, str]] = field(default_factory=Counter)
    _captured: dict[int, int] = field(default_factory=dict)  # bytes of the copies of inputs, by address
    _known: KnownCopies = field(default_factory=dict)  # parameters are inputs of every graph and of every call
    _blamed: BaseException | None = None

    # -- refusals -------------------------------------------------------------------------------

    def refuses(self, label: Label, *, container: bool = False, can: Callable[[], bool] | None = None) -> bool:
        """Return whether this rewrite is vetoed, by name or because only others are wanted; counted if so.

        Of a ``container`` of passes or patterns, ``only`` refuses just what it holds; ``can`` says whether it can be
        left out.
        """
        if not container:
            self.ledger.offered.append(label)
        wanted = (
            self.only is None or container or label.rewrite in _ALWAYS_RUN or rule_labels.is_vetoed(label, self.only)
        )
        if (wanted and not rule_labels.is_vetoed(label, self.vetoed)) or (can is not None and not can()):
            return False
        self.count(label, "vetoed")
        return True

    def count(self, label: Label, outcome: Outcome) -> None:
        """Count the outcome of a match, for coverage."""
        self.ledger.coverage[label, outcome] += 1

    # -- exceptions -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def blame(self, label: Label) -> Iterator[None]:
        """The first exception that leaves this block is booked under ``label``."""
        try:
            yield
        except BaseException as error:  # re-raised as it is
            if self._blamed is None or self._blamed not in _list_exception_chain(error):
                self.ledger.failed_in = label
            self._blamed = error
            raise

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation; ``error`` is kept from the compile, so that no rule failed with it."""
        self.ledger.record_unseen(unseen)
        if error is not None and self._blamed is not None and error in _list_exception_chain(self._blamed):
            self.ledger.failed_in = self._blamed = None

    @contextlib.contextmanager
    def _contain_errors(self, shows: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: the compile that is watched goes on
            self.record_unseen(Unseen("recorder", describe_error(error), (self.stage_name,), shows), error)

    # -- stages ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def record_stage(self, stage: str, module: fx.GraphModule) -> Iterator[Callable[[object], None]]:
        """A stage works on ``module``; the yielded function takes the graph that the stage returns."""
        if self.stage_name == stage:  # it works on a graph inside its own
            inside = self._stages[-1]
            before, inside.current = inside.current, module
            try:
                with self.blame(Label(stage, None, stage)):
                    yield lambda result: None
            finally:
                self.record_change()
                inside.current = before
            return
        opened = _OpenStage(GraphRecord(stage, self.direction), module, module)
        self._stages.append(opened)
        self._begin_record(opened)

        def finish(result: object) -> None:
            if not isinstance(result, fx.GraphModule):
                raise TypeError(f"the stage returns a {type(result).__name__} instead of a graph")
            opened.top = opened.current = result
            self.record_change()

        try:
            with self.blame(Label(stage, None, stage)):
                yield finish
        finally:
            self._stages.pop()
            if self._stages:  # it ran within another, as joint-graph passes do within the partition
                outer = self._stages[-1]
                if outer.current is module:
                    outer.top = outer.current = opened.top
                self._drop_if_empty(outer.record)
                self.restart_record()

    @contextlib.contextmanager
    def record_backend(self, label: Label, module: fx.GraphModule) -> Iterator[Frame]:
        """A backend that goes by ``label`` has dynamo's graph: if it changes that, a frame with nothing else in it."""
        self.frame = frame = Frame(len(self.ledger.frames), of_backend=True)
        try:
            with self.record_stage(PRE_GRAD, module):
                self.frame, self._stages[-1].around = None, label  # compilers that it calls have frames of their own
                try:
                    with self.blame(label):
                        yield frame
                finally:
                    self.record_change()
        finally:
            self.frame = None
            if any(record.rewrites for record in frame.records):
                frame.index = len(self.ledger.frames)
                self.ledger.frames.append(frame)

    @contextlib.contextmanager
    def leave_stages(self) -> Iterator[None]:
        """Another compiler has the graph in the block: what it changes is of no stage under way."""
        self.record_change()
        outer, self._stages = self._stages, []
        try:
            yield
        finally:
            self._stages = outer
            self.restart_record()

    def restart_record(self) -> None:
        """The graph is another one, or its inputs are: what follows is recorded apart, to be replayed on those."""
        if self._stages:
            opened = self._stages[-1]
            opened.record = GraphRecord(opened.record.stage, opened.record.direction)
            self._begin_record(opened)

    def _begin_record(self, opened: _OpenStage) -> None:
        if self.frame is not None:
            self.frame.records.append(opened.record)
        with self._contain_errors("the graph at the start of the stage"):
            opened.mark = GraphState(opened.top)
            self._take_snapshot(opened)

    def _take_snapshot(self, opened: _OpenStage) -> None:
        if self.snapshots:
            snapshot = take_snapshot(opened.top, self.opaque, self._copy_constants, opened.mark)
            opened.record.snapshots.append(snapshot)

    def _drop_if_empty(self, record: GraphRecord) -> None:
        if self.frame is not None and not record.rewrites:
            self.frame.records[:] = [kept for kept in self.frame.records if kept is not record]

    @contextlib.contextmanager
    def record_partition(self, module: fx.GraphModule, *, part: bool = False) -> Iterator[None]:
        """The joint graph is cut; recorded if functions of the partitioner change it.

        With ``part``, a function works on one of the graphs that it was cut into, which is recorded apart.
        """
        outer = self._stages
        direction: Direction = "joint"
        if part:
            self._stages, direction = [], "backward" if has_tangents(module) else "forward"
        try:
            with self.set_direction(direction), self.record_stage(PARTITION, module):
                try:
                    yield
                finally:
                    self.record_change()
                    self._drop_if_empty(self._stages[-1].record)
        finally:
            self._stages = outer

    @contextlib.contextmanager
    def set_direction(self, direction: Direction) -> Iterator[None]:
        """The graphs of this block are computed in ``direction``."""
        before, self.direction = self.direction, direction
        try:
            yield
        finally:
            self.direction = before

    @property
    def stage_name(self) -> str:
        """Name of the stage under way."""
        return self._stages[-1].record.stage if self._stages else RUNTIME

    def owns(self, graph: object) -> bool:
        """Return whether ``graph`` is the one that the present stage works on (not a pattern being traced)."""
        return bool(self._stages) and any(
            graph is own for own in (self._stages[-1].current, self._stages[-1].current.graph)
        )

    # -- passes and patterns --------------------------------------------------------------------

    @contextlib.contextmanager
    def record_pass(self, label: Label, *, plain: bool = False) -> Iterator[None]:
        """A pass runs; what it changes beyond the patterns inside it is its own rewrite.

        ``plain`` is a function that Inductor calls straight, and that may call others: the innermost is at work.
        """
        self.record_change()
        if self._passes and self._passes[-1] != label:
            self.note_surrounding(label)
        self._passes.append(label)
        self._observed += not plain
        try:
            with self.blame(label):
                yield
        finally:
            self._observed -= not plain
            self._passes.pop()
            self.record_change(label)

    @property
    def pass_name(self) -> str | None:
        """Name of the innermost pass under way: of a user's own, the setting that it was given as."""
        return (self._passes[-1].pass_name or self._passes[-1].rewrite) if self._passes else None

    @property
    def in_observed_pass(self) -> bool:
        """True while an observed pass is under way, to which everything in it belongs."""
        return self._observed > 0

    def note_surrounding(self, label: Label) -> None:
        """Remember the pass under way as one without which ``label`` would not be applied."""
        if self._passes:
            self.ledger.inside[label] = self._passes[-1]

    def record_result(self, graph: object, result: object) -> None:
        """A pass was given the stage's ``graph`` and gave back ``result``, with which the stage goes on."""
        opened = self._stages[-1] if self._stages else None
        if opened is not None and isinstance(result, fx.GraphModule) and graph is opened.current:
            opened.top = result if opened.top is opened.current else opened.top
            opened.current = result

    def announce(self, label: Label, graph: object, result: object) -> None:
        """A function gave back another ``fx.Graph`` than it was given: the next change is of its making."""
        if isinstance(result, fx.Graph) and result is not graph:
            self._announced = label

    def apply_pattern(self, label: Label, match: Match, node: fx.Node, apply: Callable[[], object]) -> None:
        """Apply a pattern's rewrite and record what it did to the graph."""
        self.record_change()
        if self._passes and self._passes[-1].rewrite != self._passes[-1].pass_name:
            self.note_surrounding(label)
        nodes = [n for n in match.nodes if isinstance(n, fx.Node)]
        names, site = tuple(n.name for n in nodes), self._make_site(label, nodes)
        before, module = self._stages[-1].mark if self._stages else None, node.graph.owning_module
        self.count(label, "fired")  # also where it raises
        self._applied.append((len(self._passes), label, names, site))
        try:
            with self.blame(label):
                apply()
        finally:
            self._applied.pop()
        if before is not None and module is not None and (self.snapshots or self.screen):
            with self._contain_errors("what a lowering pattern replaced"):
                self._keep_lowered_match(before, match, nodes, node, module)
        self.record_change(label, names, site)

    def _keep_lowered_match(
        self, before: GraphState, match: Match, nodes: list[fx.Node], output: fx.Node, module: fx.GraphModule
    ) -> None:
        """Keep what a handler that is new in ``module`` since ``before`` stands for, so that it can be replayed."""
        handlers = [node for node in module.graph.nodes if is_lowering_handler(node.target)]
        created = [handler for handler in handlers if handler not in dict(before.iterate_nodes())]
        if created:
            graph, feeds = extract_match(before, nodes, output)
            flat = pytree.tree_leaves((tuple(match.args), match.kwargs))
            places = {id(argument): position for position, argument in reversed(list(enumerate(flat)))}
            if all(id(feed) in places for feed in feeds):  # no values that are no arguments of the match
                attributes = collect_attributes(GraphState(module, graph), self._copy_constants)
                opaque = Opaque(graph, attributes, tuple(places[id(feed)] for feed in feeds))
                self.opaque.update({id(handler.target): opaque for handler in created})

    def record_parts(self, label: Label, graphs: Iterable[fx.GraphModule]) -> None:
        """A partitioner cut the joint graph as it stands into ``graphs``, forward and backward."""
        self.count(label, "fired")
        if self.frame is None or not self.snapshots:
            return
        joint = [record for record in self.frame.records if (record.stage, record.direction) == (JOINT_GRAPH, "joint")]
        with self._contain_errors("the partition's graphs"):
            if joint and joint[-1].snapshots:
                forward, backward = (take_snapshot(graph, self.opaque, self._copy_constants) for graph in graphs)
                self.frame.partitions.append(GraphPartition(label, joint[-1], forward, backward))

    def record_change(self, label: Label | None = None, nodes: tuple[str, ...] = (), site: Site | None = None) -> None:
        """If the graph is not as it was at the last mark, write a rewrite down under ``label``, or what is at work."""
        if not self._stages:
            return
        opened = self._stages[-1]
        with self._contain_errors("changes of the graph"):
            now = GraphState(opened.top)
            if opened.mark is not None and now.is_same(opened.mark):
                return
            opened.mark = now
            record = opened.record
            if label is None and self._applied and self._applied[-1][0] == len(self._passes):
                _, label, nodes, site = self._applied[-1]  # its handler goes on to call a pass
            elif label is None:
                outside = opened.around or Label(record.stage, None, _OUTSIDE)
                label = self._passes[-1] if self._passes else outside
                label = self._announced or label
            self._announced = None
            self._take_snapshot(opened)
            last = len(record.snapshots) - 1
            record.rewrites.append(Rewrite(label, nodes, site, max(last - 1, 0), last))
            if not nodes:
                self.count(label, "fired")

    def _make_site(self, label: Label, nodes: list[fx.Node]) -> Site | None:
        with self._contain_errors("places of rewrites in the program"):
            where = rule_labels.find_location(nodes)
            if where is not None:
                key = (rule_labels.get_family(label.rewrite), where)
                self._ordinals[key] += 1
                return Site(where, self._ordinals[key])
        return None

    # -- copies ---------------------------------------------------------------------------------

    def capture(self, calls: list[CallInputs], inputs: Sequence[object]) -> None:
        """Keep copies of the inputs of the first calls of a compiled graph."""
        room = len(calls) < _ALWAYS_CAPTURED or sum(self._captured.values()) < _CAPTURED_BYTES
        traced = any(is_fake_class(type(value)) for value in inputs)  # by dynamo, which splits a graph of DDP
        if self.capturing and room and not traced and len(calls) < CAPTURED_CALLS:
            with self._contain_errors("inputs of compiled graphs"):
                calls.append(copy_tree(list(inputs), known=self._known))
                self._captured.update(measure_storages(calls[-1]))

    def capture_parameters(self, frame: Frame, parameters: Sequence[torch.Tensor]) -> None:
        """Keep copies of the parameters that a frame's graph holds itself."""
        if self.capturing:
            with self._contain_errors("frozen parameters"), _disable_current_modes():
                frame.parameters.extend(copy_tree(list(parameters), known=self._known))

    def _copy_constants(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return the constants of a graph as they are now: a program run in place changes its frozen parameters.

        Fake tensors, and those that are prepacked for a library, have no values in a storage and stay as they are.
        """
        plain = {name: value for name, value in attributes.items() if is_plain(value) and value.layout == torch.strided}
        with _disable_current_modes():
            return {**attributes, **copy_tree(plain, known=self._known)}


def _list_exception_chain(error: BaseException) -> list[BaseException]:
    """The exception and those it wraps: the compiler re-raises what passes raise as errors of its own."""
    chain = [error]
    for item in chain:
        wrapped = (item.__cause__, item.__context__, getattr(item, "inner_exception", None))
        chain += [inner for inner in wrapped if isinstance(inner, BaseException) and inner not in chain]
    return chain


def extract_match(before: GraphState, nodes: list[fx.Node], output: fx.Node) -> tuple[fx.Graph, list[fx.Node]]:
    """The matched ``nodes`` as they were ``before``, as a graph of their own, and the outer nodes that feed it."""
    inside = set(nodes)
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    feeds: list[fx.Node] = []

    def copy_node(source: fx.Node) -> fx.Node:
        if source not in mapping:
            assert source not in inside, "a match is not in the order of its graph"
            mapping[source] = graph.placeholder(f"feed_{len(feeds)}")
            feeds.append(source)
        return mapping[source]

    for node, (target, args, kwargs, name) in before.iterate_nodes():
        if node in inside:
            new_args, new_kwargs = fx.node.map_arg(args, copy_node), fx.node.map_arg(kwargs, copy_node)
            mapping[node] = graph.create_node(node.op, target, new_args, new_kwargs, name, node.type)
    graph.output(mapping[output])
    return graph, feeds
