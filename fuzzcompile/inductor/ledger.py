"""The ledger: every rewrite of one compile, in order, with the graphs between them."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

Stage = Literal["pre_grad", "joint_graph", "post_grad"]
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
    """Where in the user's program a rewrite applied: ``file:line``, and which match of it there."""

    location: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.location} #{self.ordinal}"


@dataclass(frozen=True)
class Opaque:
    """What a lowering pattern replaced, kept so that its opaque node can still be replayed."""

    graph: fx.Graph
    attributes: Mapping[str, Any]
    inputs: tuple[int, ...]  # positions among the flattened match arguments


@dataclass(frozen=True)
class Snapshot:
    """A graph as it stood between two rewrites; ``attributes`` holds what its get_attr nodes name."""

    graph: fx.Graph
    attributes: Mapping[str, Any]
    opaque: Mapping[int, Opaque]

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
    """All that happened to one graph in one stage."""

    stage: Stage
    direction: Direction
    snapshots: list[Snapshot] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)


@dataclass
class Call:
    """One execution of a compiled graph: its real inputs, as they were before the call."""

    inputs: list[Any]


@dataclass
class Frame:
    """One call of the backend by dynamo: one captured graph and all that was made of it.

    ``parameters`` are those that dynamo left inside its graph, as it does where they will be frozen.
    """

    index: int
    records: list[GraphRecord] = field(default_factory=list)
    dynamo_calls: list[Call] = field(default_factory=list)
    forward_calls: list[Call] = field(default_factory=list)
    backward_calls: list[Call] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)

    def record(self, stage: str, direction: str | None = None) -> GraphRecord | None:
        """The record of a stage (and direction), or None where the stage did not run."""
        for record in self.records:
            if record.stage == stage and direction in (None, record.direction):
                return record
        return None


Outcome = Literal["fired", "refused", "vetoed"]


@dataclass
class Ledger:
    """What one compile did. ``coverage`` counts rules by what became of their matches.

    ``inside`` tells in which pass of the user's own a pattern was applied. ``unreplayed`` are rules that worked on
    something else than a graph, so that no replay can judge them. ``graphs`` counts what dynamo captured, for
    whatever backend, and ``graph_breaks`` says why it stopped.
    """

    frames: list[Frame] = field(default_factory=list)
    coverage: Counter[tuple[Label, Outcome]] = field(default_factory=Counter)
    inside: dict[Label, Label] = field(default_factory=dict)
    unreplayed: list[Label] = field(default_factory=list)
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    failed_in: Label | None = None
    trouble: list[str] = field(default_factory=list)

    def rewrites(self) -> list[tuple[Frame, GraphRecord, Rewrite]]:
        """All rewrites of all frames, in the order in which they happened."""
        return [
            (frame, record, rewrite) for frame in self.frames for record in frame.records for rewrite in record.rewrites
        ]


Keep = Callable[[dict[str, Any]], dict[str, Any]]


def take_snapshot(module: fx.GraphModule, opaque: Mapping[int, Opaque], keep: Keep = dict) -> Snapshot:
    """Copy a graph; the live one is never sorted or touched.

    Some rules leave the live graph out of topological order until their stage ends, so the copy is sorted.
    Submodules (bodies of higher-order operators) are copied with their graphs. ``keep`` copies what the graph names
    in its module; without it, tensors are shared.
    """
    return Snapshot(_sorted_copy(module.graph), attributes_of(module.graph, module, keep), dict(opaque))


def fingerprint(module: fx.GraphModule) -> int:
    """A value that changes when the graph, or the graph of a submodule, changes."""
    parts: list[Any] = []
    for node in module.graph.nodes:
        target = node.target if isinstance(node.target, str) else id(node.target)
        parts.append((node.name, node.op, target, repr(node.args), repr(node.kwargs)))
        if node.op == "get_attr":
            child = _resolve(module, str(node.target))
            if isinstance(child, fx.GraphModule):
                parts.append(fingerprint(child))
    return hash(tuple(parts))


def sub_graph(nodes: list[fx.Node], output: fx.Node) -> tuple[fx.Graph, list[fx.Node]]:
    """The matched ``nodes`` as a graph of their own, and the outer nodes that feed it, in order."""
    inside = set(nodes)
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    feeds: list[fx.Node] = []
    for node in sorted(nodes):
        for source in node.all_input_nodes:
            if source not in inside and source not in mapping:
                mapping[source] = graph.placeholder(f"feed_{len(feeds)}")
                feeds.append(source)
        mapping[node] = graph.node_copy(node, lambda n: mapping[n])
    graph.output(mapping[output])
    return graph, feeds


def is_handler(target: object) -> bool:
    """Whether a node's target is the Python handler (a ``functools.partial``) of a lowering pattern."""
    return isinstance(target, functools.partial)


def attributes_of(graph: fx.Graph, module: torch.nn.Module, keep: Keep = dict) -> dict[str, Any]:
    """What the get_attr and call_module nodes of ``graph`` name in ``module``."""
    found: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = _resolve(module, str(node.target))
            found[str(node.target)] = _copied_module(value, keep) if isinstance(value, fx.GraphModule) else value
    return keep(found)


def _copied_module(module: fx.GraphModule, keep: Keep) -> fx.GraphModule:
    return fx.GraphModule(attributes_of(module.graph, module, keep), _sorted_copy(module.graph))


def _sorted_copy(graph: fx.Graph) -> fx.Graph:
    """Copy a graph in a topological order that keeps the present order wherever it can."""
    new = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    for node in _topological(list(graph.nodes)):
        mapping[node] = new.node_copy(node, lambda n: mapping[n])
        mapping[node].meta = copy.copy(node.meta)
    return new


def _topological(nodes: list[fx.Node]) -> list[fx.Node]:
    done: set[fx.Node] = set()
    ordered: list[fx.Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [source for source in node.all_input_nodes if source not in done]
            if node in done:
                stack.pop()
            elif missing:
                stack.extend(reversed(missing))
            else:
                done.add(node)
                ordered.append(node)
                stack.pop()
    return ordered


def _resolve(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
