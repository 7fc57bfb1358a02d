"""The ledger: every rewrite of one compile, in order, with the graphs between them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from fuzzcompile.compiler.copies import GraphCopy, Row, State, resolve
from fuzzcompile.compiler.target.interpreted.log import KernelLog
from fuzzcompile.compiler.unseen import Unseen, UnseenLog

if TYPE_CHECKING:
    from fuzzcompile.compiler.analysis import Analysis
    from fuzzcompile.compiler.kernels.lowered import Lowered
    from fuzzcompile.compiler.tangents import ChangedTangent

Direction = Literal["forward", "backward", "joint", "inference"]


@dataclass(frozen=True)
class Label:
    """The stable name of a rewrite rule: it means the same in the next compile and the next process."""

    stage: str
    pass_name: str | None
    rewrite: str
    source: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Site:
    """Place in the user's program where a rewrite applied: ``file:line``, and the number of the match there."""

    location: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.location} #{self.ordinal}"


@dataclass(frozen=True)
class Opaque:
    """The nodes that a lowering pattern replaced, kept so that its opaque node can still be replayed."""

    graph: fx.Graph
    attributes: Mapping[str, Any]
    inputs: tuple[int, ...]  # positions among the flattened match arguments


@dataclass(frozen=True)
class Snapshot:
    """A graph as it stood between two rewrites; ``attributes`` holds what its get_attr nodes name.

    ``copied`` is the graph, or what it is built from when it is needed: most snapshots are never replayed.
    """

    copied: fx.Graph | GraphCopy
    attributes: Mapping[str, Any]
    opaque: Mapping[int, Opaque]

    @functools.cached_property
    def graph(self) -> fx.Graph:
        """The graph, sorted."""
        return self.copied if isinstance(self.copied, fx.Graph) else self.copied.build()

    @property
    def results(self) -> list[Any]:
        """The values that the graph returns: nodes, or constants."""
        returned = next(reversed(self.graph.nodes)).args[0]
        return list(returned) if isinstance(returned, (tuple, list)) else [returned]

    @property
    def called(self) -> set[Any]:
        """The targets of its nodes, without building the graph."""
        if isinstance(self.copied, GraphCopy):
            return self.copied.called
        return {node.target for node in self.copied.nodes if node.op in ("call_function", "call_method")}

    @property
    def calls(self) -> list[str]:
        """The operators called, as readable names, in order."""
        return [str(node.target) for node in self.graph.nodes if node.op.startswith("call")]


@dataclass(frozen=True)
class Rewrite:
    """One application of one rule to one graph: from ``snapshots[before]`` to ``snapshots[after]``."""

    label: Label
    nodes: tuple[str, ...]
    site: Site | None
    before: int
    after: int


@dataclass
class GraphRecord:
    """All that happened to one graph in one stage (one of :data:`~fuzzcompile.stage_names.GRAPH_STAGES`)."""

    stage: str
    direction: Direction
    snapshots: list[Snapshot] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)


@dataclass(frozen=True)
class Partition:
    """Cut of a joint graph (the last snapshot of ``joint``) into forward and backward, with the partitioner's label."""

    label: Label
    joint: GraphRecord
    forward: Snapshot
    backward: Snapshot


@dataclass
class Call:
    """One execution of a compiled graph: its real inputs, as they were before the call."""

    inputs: list[Any]


@dataclass
class Frame:
    """One call of the backend by dynamo: one captured graph and all that was made of it.

    ``parameters`` are those that dynamo left inside its graph, as it does where they will be frozen. ``analysis`` is
    what AOTAutograd said of the graph's inputs and outputs.
    """

    index: int
    records: list[GraphRecord] = field(default_factory=list)
    dynamo_calls: list[Call] = field(default_factory=list)
    forward_calls: list[Call] = field(default_factory=list)
    backward_calls: list[Call] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    analysis: Analysis | None = None

    def record(self, stage: str, direction: str | None = None) -> GraphRecord | None:
        """The record of a stage (and direction), or None where the stage did not run."""
        for record in self.records:
            if record.stage == stage and direction in (None, record.direction):
                return record
        return None


Outcome = Literal["fired", "refused", "vetoed"]


@dataclass(frozen=True)
class Reached:
    """Something else than a rewrite that a compile used: a decomposition, a lowering, a shape of fused kernel.

    ``outcome`` is ``fired``, or ``fallback`` for an operator that is not lowered but called.
    """

    stage: str
    name: str
    outcome: Literal["fired", "fallback"]


@dataclass
class Ledger:
    """Record of one compile. ``coverage`` counts rules by the outcome of their matches.

    ``inside`` tells in which pass of the user's own a pattern was applied. ``unreplayed`` are rules that worked on
    something else than a graph, so that no replay can judge them. ``graphs`` counts what dynamo captured, for
    whatever backend, and ``graph_breaks`` says why it stopped. ``lowered`` holds what is behind the graph passes, where
    that was watched. ``reached`` counts decompositions, lowerings and kernels of a recorded compile. ``unseen`` is what
    could not be watched. ``interpreted`` is what happened to the kernels of a target. ``checks`` counts what refused
    those rules whose refusals are explained (:mod:`.refusals`). ``changed_tangents`` are those of which a
    backward pass was given other values.
    """

    frames: list[Frame] = field(default_factory=list)
    coverage: Counter[tuple[Label, Outcome]] = field(default_factory=Counter)
    inside: dict[Label, Label] = field(default_factory=dict)
    unreplayed: list[Label] = field(default_factory=list)
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    failed_in: Label | None = None
    unseen: UnseenLog = field(default_factory=UnseenLog)
    lowered: list[Lowered] = field(default_factory=list)
    reached: Counter[Reached] = field(default_factory=Counter)
    interpreted: KernelLog = field(default_factory=KernelLog)
    checks: Counter[tuple[Label, str]] = field(default_factory=Counter)
    changed_tangents: list[ChangedTangent] = field(default_factory=list)

    def missed(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.unseen.note(unseen)

    def blind(self, *stages: str) -> bool:
        """Return whether the ledger missed something that may matter in one of these stages (in any, if none is named).

        A veto in such a stage may never have run: that the divergence stays says nothing then, and an empty record of
        the stage does not show that nothing happened in it.
        """
        return self.unseen.blind(*stages)

    def rewrites(self) -> list[tuple[Frame, GraphRecord, Rewrite]]:
        """All rewrites of all frames, in the order in which they happened."""
        return [
            (frame, record, rewrite) for frame in self.frames for record in frame.records for rewrite in record.rewrites
        ]


Keep = Callable[[dict[str, Any]], dict[str, Any]]


def take_snapshot(
    module: fx.GraphModule, opaque: Mapping[int, Opaque], keep: Keep = dict, state: State | None = None
) -> Snapshot:
    """Copy a graph; the live one is never sorted or touched.

    Submodules (bodies of higher-order operators) are copied with their graphs. ``keep`` copies what the graph names
    in its module; without it, tensors are shared. ``state`` is the graph as it stands, where that is known.
    """
    state = state or State(module)
    return Snapshot(GraphCopy(state.nodes, state.rows), _attributes(state, keep), dict(opaque))


def sub_graph(nodes: list[fx.Node], rows: Mapping[fx.Node, Row], output: fx.Node) -> tuple[fx.Graph, list[fx.Node]]:
    """The matched ``nodes``, which held ``rows``, as a graph of their own, and the outer nodes that feed it."""
    inside = set(nodes)
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    feeds: list[fx.Node] = []

    def copied(source: fx.Node) -> fx.Node:
        if source not in mapping:
            assert source not in inside, "a match is not in the order of its graph"
            mapping[source] = graph.placeholder(f"feed_{len(feeds)}")
            feeds.append(source)
        return mapping[source]

    for node in (node for node in rows if node in inside):
        target, args, kwargs, name = rows[node]
        new_args, new_kwargs = fx.node.map_arg(args, copied), fx.node.map_arg(kwargs, copied)
        mapping[node] = graph.create_node(node.op, target, new_args, new_kwargs, name, node.type)
    graph.output(mapping[output])
    return graph, feeds


def is_handler(target: object) -> bool:
    """Return whether a node's target is the Python handler (a ``functools.partial``) of a lowering pattern."""
    return isinstance(target, functools.partial)


def attributes_of(graph: fx.Graph, module: torch.nn.Module, keep: Keep = dict) -> dict[str, Any]:
    """Return the values in ``module`` that the get_attr and call_module nodes of ``graph`` name."""
    names = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
    found = {name: resolve(module, name) for name in names}
    return keep(
        {name: _copied_module(State(value), keep) if _is_graph(value) else value for name, value in found.items()}
    )


def _attributes(state: State, keep: Keep) -> dict[str, Any]:
    children = iter(state.children)
    return keep(
        {name: _copied_module(next(children), keep) if _is_graph(value) else value for name, value in state.held}
    )


def _copied_module(state: State, keep: Keep) -> fx.GraphModule:
    return fx.GraphModule(_attributes(state, keep), GraphCopy(state.nodes, state.rows).build())


def _is_graph(value: object) -> bool:
    return isinstance(value, fx.GraphModule)
