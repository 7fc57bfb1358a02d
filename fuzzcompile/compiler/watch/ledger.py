"""The ledger: every rewrite of one compile, the graphs between them, and the record of lowering and kernels."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from fuzzcompile.compiler.target.kernel_log import KernelLog
from fuzzcompile.compiler.watch.compiler_errors import find_raise_place
from fuzzcompile.compiler.watch.unseen import Unseen, UnseenLog
from fuzzcompile.model.stages import CODEGEN
from fuzzcompile.run.call_state import CallState
from fuzzcompile.run.device import AutocastRegions

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler


# Copies of the compiler's graphs. A compile is inspected more than a hundred times and its graphs are copied a dozen
# times, so neither may cost more than a walk in C over the nodes. It rests on one property of fx: a node's ``args`` and
# ``kwargs`` are immutable, and an assignment to them makes new objects. What is the same object has not changed.

Row = tuple[Any, Any, Any, str]
_ROW = operator.attrgetter("target", "args", "kwargs", "name")


class GraphState:
    """A graph as it stands, and what its nodes name in its module; holds the live nodes and costs no copy."""

    __slots__ = ("children", "held", "nodes", "rows")

    def __init__(self, module: fx.GraphModule, graph: fx.Graph | None = None) -> None:
        graph = graph or module.graph  # or another whose nodes name what the module has
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.rows: list[Row] = list(map(_ROW, self.nodes))
        named = (str(node.target) for op in ("get_attr", "call_module") for node in graph.find_nodes(op=op))
        self.held = [(name, resolve_path(module, name)) for name in named]
        self.children = [GraphState(value) for _, value in self.held if isinstance(value, fx.GraphModule)]

    def is_same(self, other: GraphState) -> bool:
        """Return whether nothing changed between the two; a part that was rebuilt exactly counts as the same."""
        if len(self.nodes) != len(other.nodes) or len(self.children) != len(other.children):
            return False
        flat = itertools.chain.from_iterable
        if not all(map(operator.is_, flat(self.rows), flat(other.rows))) and not self._reads_the_same(other):
            return False
        if [name for name, _ in self.held] != [name for name, _ in other.held]:
            return False
        values = zip(self.held, other.held, strict=True)
        if not all(mine is yours or isinstance(mine, fx.GraphModule) for (_, mine), (_, yours) in values):
            return False
        return all(one.is_same(two) for one, two in zip(self.children, other.children, strict=True))

    def _reads_the_same(self, other: GraphState) -> bool:
        """Compare as text where objects differ: sizes are symbols, and comparing those would make guards."""
        for one, two, mine, yours in zip(self.rows, other.rows, self.nodes, other.nodes, strict=True):
            if all(map(operator.is_, one, two)):
                continue
            if mine.op != yours.op or one[3] != two[3] or repr(one[1:3]) != repr(two[1:3]):
                return False
            if one[0] is not two[0] and not (isinstance(one[0], str) and one[0] == two[0]):
                return False
        return True

    def iterate_nodes(self) -> Iterator[tuple[fx.Node, Row]]:
        """All nodes with what they held, those of submodules too."""
        yield from zip(self.nodes, self.rows, strict=True)
        for child in self.children:
            yield from child.iterate_nodes()


class GraphCopy:
    """The copy of one graph."""

    __slots__ = ("_metas", "_nodes", "_rows")

    def __init__(self, state: GraphState) -> None:
        self._nodes, self._rows = state.nodes, state.rows
        self._metas = [node.meta.copy() for node in state.nodes]

    @property
    def called_targets(self) -> set[Any]:
        """The targets of the nodes: operators, functions, names of methods."""
        rows = zip(self._nodes, self._rows, strict=True)
        return {target for node, (target, _, _, _) in rows if node.op in ("call_function", "call_method")}

    def build(self) -> fx.Graph:
        """A graph of its own in a topological order that keeps the present order wherever it can.

        Some rules leave the live graph out of order until their stage ends. Of one with a cycle, which has no order,
        a graph that raises stands in.
        """
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        held = {node: position for position, node in enumerate(self._nodes)}
        ordered = self._sort_nodes(held)
        for node in [node for node in self._nodes if node.op == "placeholder"] if ordered is None else ordered:
            target, args, kwargs, name = self._rows[held[node]]
            new_args, new_kwargs = (fx.node.map_arg(given, made.__getitem__) for given in (args, kwargs))
            made[node] = graph.create_node(node.op, target, new_args, new_kwargs, name, node.type)
            made[node].meta = self._metas[held[node]]
        if ordered is None:
            graph.output(graph.call_function(_raise_cycle))
        return graph

    def _sort_nodes(self, held: dict[fx.Node, int]) -> list[fx.Node] | None:
        sources: list[dict[fx.Node, None]] = []
        for _, args, kwargs, _ in self._rows:
            sources.append({})
            fx.node.map_arg((args, kwargs), sources[-1].setdefault)
        done: set[fx.Node] = set()
        waiting: set[fx.Node] = set()
        ordered: list[fx.Node] = []
        for root in self._nodes:
            stack = [root]
            while stack:
                node = stack[-1]
                missing = [source for source in sources[held[node]] if source not in done]
                if node in done:
                    stack.pop()
                elif missing and (node in waiting or not all(source in held for source in missing)):
                    return None
                elif missing:
                    waiting.add(node)
                    stack.extend(reversed(missing))
                else:
                    done.add(node)
                    waiting.discard(node)
                    ordered.append(node)
                    stack.pop()
        return ordered


def _raise_cycle() -> None:
    raise ValueError("the graph is no graph of a program: its nodes need each other, or one that is not in it")


def resolve_path(module: Any, path: str) -> Any:
    """Return the value that a dotted path names in a module; None if there is none."""
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


# The record of a compile.

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
    """A graph as it stood between two rewrites, built when it is needed: most are never replayed."""

    copied: fx.Graph | GraphCopy  # the graph, or what it is built from
    attributes: Mapping[str, Any]  # what its get_attr nodes name
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
    def called_targets(self) -> set[Any]:
        """The targets of its nodes, without building the graph."""
        if isinstance(self.copied, GraphCopy):
            return self.copied.called_targets
        return {node.target for node in self.copied.nodes if node.op in ("call_function", "call_method")}

    @property
    def operator_names(self) -> list[str]:
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
    """All that happened to one graph in one stage (one of :data:`~fuzzcompile.model.stages.GRAPH_STAGES`)."""

    stage: str
    direction: Direction
    snapshots: list[Snapshot] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)


@dataclass(frozen=True)
class GraphPartition:
    """Cut of a joint graph (the last snapshot of ``joint``) into forward and backward, with the partitioner's label."""

    label: Label
    joint: GraphRecord
    forward: Snapshot
    backward: Snapshot


CallInputs = list[Any]
"""The real inputs of one execution of a compiled graph, as they were before the call."""


@dataclass(frozen=True)
class MetadataAnalysis:
    """Result of the analysis: of each output its kind and if it gets gradients, of each input what the call changes.

    That is if it is ``written`` to, and if it gets other sizes or strides (``reshaped``).

    An output's kind is the name of AOTAutograd's ``OutputType`` and the input that it is a view of, if any.
    """

    gradients: Sequence[bool]
    kinds: Sequence[tuple[str, int | None]]
    written: Sequence[bool]
    reshaped: Sequence[bool]


@dataclass(frozen=True)
class ChangedTangent:
    """A tangent that the copy changed."""

    shape: tuple[int, ...]  # of the tangent, before and behind the copy
    strides: tuple[int, ...]  # of the copy
    before: torch.Tensor  # the tangent
    after: torch.Tensor  # its copy, in contiguous memory
    line: int | None  # of the function that copies, in its file


@dataclass
class Frame:
    """One call of the backend by dynamo: one captured graph and all that was made of it.

    ``autocast`` surrounded the capture: what calls of dynamo's graph do in eager mode hangs on it. What AOTAutograd
    makes of them has its casts, and runs outside.
    """

    index: int
    autocast: AutocastRegions = field(default_factory=AutocastRegions.current)
    records: list[GraphRecord] = field(default_factory=list)
    dynamo_calls: list[CallInputs] = field(default_factory=list)
    forward_calls: list[CallInputs] = field(default_factory=list)
    backward_calls: list[CallInputs] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)  # left inside of dynamo's graph, to be frozen
    partitions: list[GraphPartition] = field(default_factory=list)
    analysis: MetadataAnalysis | None = None
    of_backend: bool = False  # nothing but what a user's backend changed: what it calls to compile has other frames
    repeats_outputs: bool = False  # a compiled graph gave one tensor in several places

    def find_record(self, stage: str, direction: str | None = None) -> GraphRecord | None:
        """The record of a stage (and direction), or None where the stage did not run."""
        found = (each for each in self.records if each.stage == stage and direction in (None, each.direction))
        return next(found, None)


Outcome = Literal["fired", "refused", "vetoed"]


@dataclass(frozen=True)
class ReachedRule:
    """Something else than a rewrite that a compile used: a decomposition, a lowering, a shape of fused kernel."""

    stage: str
    name: str
    outcome: Literal["fired", "fallback"]  # the latter for an operator that is not lowered but called


@dataclass(frozen=True)
class GuardRecord:
    """A guard that dynamo asked for while it traced: what on (a Python expression), of which kind, and its checks.

    ``part`` is the attribute or key that it is about, if it is about one; ``made`` are the kinds of guards that came
    of it, ``checks`` what they check, as far as dynamo writes that down; ``call`` is the number of the call that was
    traced, from 1.
    """

    name: str
    part: str
    kind: str
    made: tuple[str, ...]
    checks: tuple[str, ...]
    call: int


@dataclass
class Ledger:
    """Record of one compile."""

    frames: list[Frame] = field(default_factory=list)
    coverage: Counter[tuple[Label, Outcome]] = field(default_factory=Counter)  # rules by the outcome of matches
    offered: list[Label] = field(default_factory=list)  # passes and matches that could be refused, as they came
    inside: dict[Label, Label] = field(default_factory=dict)  # the user's pass in which a pattern was applied
    unreplayed: list[Label] = field(default_factory=list)  # rules that worked on something else than a graph
    graphs: int = 0  # that dynamo captured, for whatever backend
    restored: bool = False  # whether one came out of torch's caches on disk
    exported: list[fx.Graph] = field(default_factory=list)  # of programs that torch.export captured
    graph_breaks: tuple[str, ...] = ()
    given_up: list[object] = field(default_factory=list)  # attempts at frames that an instruction left out has ended
    failed_in: Label | None = None
    unseen: UnseenLog = field(default_factory=UnseenLog)
    lowered: list[LoweredGraph] = field(default_factory=list)
    reached: Counter[ReachedRule] = field(default_factory=Counter)
    interpreted: KernelLog = field(default_factory=KernelLog)
    checks: Counter[tuple[Label, str]] = field(default_factory=Counter)  # of rules whose refusals are explained
    changed_tangents: list[ChangedTangent] = field(default_factory=list)
    calls: list[CallState] = field(default_factory=list)  # the state before each, where calls may compile anew
    guards: list[GuardRecord] = field(default_factory=list)  # of these calls

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.unseen.note(unseen)

    def list_rewrites(self) -> list[tuple[Frame, GraphRecord, Rewrite]]:
        """All rewrites of all frames, in the order in which they happened."""
        records = [(frame, record) for frame in self.frames for record in frame.records]
        return [(frame, record, rewrite) for frame, record in records for rewrite in record.rewrites]


@dataclass
class ProbeLedgers:
    """Records of the probes' compiles (:mod:`~fuzzcompile.compiler.watch.conformance` holds the programs)."""

    trained: Ledger = field(default_factory=Ledger)
    inferred: Ledger = field(default_factory=Ledger)
    frozen: Ledger = field(default_factory=Ledger)
    vetoed: Ledger = field(default_factory=Ledger)  # a compile with a pattern vetoed, and ``aten.silu`` not decomposed
    generated: Ledger = field(default_factory=Ledger)  # a compile up to generated C++, with the values of its kernels
    # the same with every change that a proof of a culprit in code generation asks for
    changed: Ledger = field(default_factory=Ledger)
    anew: Ledger = field(default_factory=Ledger)  # two calls of one program, the second compiled anew
    stored: Ledger = field(default_factory=Ledger)  # two fused loops, with the buffer between them stored
    broken: Ledger = field(default_factory=Ledger)  # a program whose graph breaks at two methods
    vetoed_is_right: bool = False  # whether the vetoed compile gave the right result
    # what a fake tensor says of an operator whose description is wrong and whose kernel is to be asked
    metadata: tuple[int, ...] = ()
    watched: Ledger = field(default_factory=Ledger)  # a program whose instructions are recorded
    ranks: tuple[object, ...] = ()  # what is known there of its local name `rank`, the rank of its input


Keep = Callable[[dict[str, Any]], dict[str, Any]]


def take_snapshot(
    module: fx.GraphModule, opaque: Mapping[int, Opaque], keep: Keep = dict, state: GraphState | None = None
) -> Snapshot:
    """Copy a graph (``state``, if it is known) with its submodules; ``keep`` copies what it names in its module."""
    state = state or GraphState(module)
    return Snapshot(GraphCopy(state), collect_attributes(state, keep), dict(opaque))


def is_lowering_handler(target: object) -> bool:
    """Return whether a node's target is the Python handler (a ``functools.partial``) of a lowering pattern."""
    return isinstance(target, functools.partial)


def collect_attributes(state: GraphState, keep: Keep = dict) -> dict[str, Any]:
    """Return the values that the get_attr and call_module nodes of a graph name, submodules copied."""
    held, children = dict(state.held), iter(state.children)
    for name, value in state.held:
        if isinstance(value, fx.GraphModule):
            child = next(children)
            held[name] = fx.GraphModule(collect_attributes(child, keep), GraphCopy(child).build())
    return keep(held)


# Record of one watched compile behind a graph's passes: the IR, the kernels and the values that they wrote.

# What kernels wrote is kept up to this size, a graph and call.
KEPT_BYTES = 512 * 2**20
_MESSAGE = 300


@dataclass(frozen=True)
class KernelStatement:
    """The expression that was written for an operator of a loop (``reduction:sum``), and its variable."""

    variable: str
    expression: str
    operator: str


@dataclass(frozen=True)
class Kernel:
    """One call of a kernel: ``nodes`` are the operators that it computes, ``writes`` its buffers in the IR's names."""

    number: int
    name: str
    extern: bool
    nodes: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    scheduled: tuple[BaseSchedulerNode, ...] = ()


@dataclass(frozen=True)
class OverwrittenBuffer:
    """A buffer that no longer held what was written to it when a kernel came to read it."""

    buffer: str
    written_by: int
    read_by: int


@dataclass
class GraphCall:
    """One execution of a compiled graph."""

    written: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)  # by kernel and buffer
    overwritten: list[OverwrittenBuffer] = field(default_factory=list)
    outputs: list[object] | None = None
    inputs_after: dict[int, torch.Tensor] = field(default_factory=dict)
    running: int | None = None  # the kernel that never returned
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    kept: int = 0


@dataclass(frozen=True)
class LoweringFailure:
    """Place behind the passes where an exception rose: the operator being lowered, or the kernel being made or run."""

    place: str  # the stage at work
    nodes: tuple[str, ...] = ()
    kernel: str | None = None
    message: str = ""
    source: str | None = None  # of the compiler's code that raised, as the line
    line: int | None = None
    operators: tuple[str, ...] = ()  # whose code could not be written
    refused: str | None = None  # the whole message of the compiler that refused the generated code


@dataclass
class LoweredGraph:
    """One graph that was lowered, and what was made of it."""

    frame: int
    direction: str
    graph: GraphLowering
    snapshot: Snapshot
    labels: Mapping[str, str]
    values: dict[str, object] = field(default_factory=dict)  # the IR of each node
    marks: dict[str, int] = field(default_factory=dict)  # operations of the IR once a node was lowered
    kernels: list[Kernel] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # by the names of kernels, as what follows
    statements: dict[str, list[KernelStatement]] = field(default_factory=dict)
    generators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scheduler: Scheduler | None = None
    calls: list[GraphCall] = field(default_factory=list)
    failed: LoweringFailure | None = None
    split: set[str] = field(default_factory=set)  # nodes with a loop that the code generator made two
    cudagraphs: bool = False  # whether Inductor has no reason against recording it as a CUDA graph
    program: str = ""  # the text of the generated program

    def find_node(self, name: str) -> fx.Node | None:
        """The node of that name in the graph that was lowered."""
        return next((node for node in self.snapshot.graph.nodes if node.name == name), None)

    def find_producer(self, name: str) -> str:
        """The operator behind one of its several results; any other node is its own."""
        node = self.find_node(name)
        while node is not None and node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return node.name if node is not None else name

    def find_kernel(self, name: str | None) -> Kernel | None:
        """The first call of the kernel of that name."""
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def list_code_generators(self, kernel: str | None) -> tuple[str, ...]:
        """The classes of the code generator of a kernel; of all that the scheduler uses if it is not known."""
        if kernel in self.generators:
            return self.generators[kernel]
        backends: Mapping[object, object] = getattr(self.scheduler, "backends", {})
        # The backend of a GPU hands the nodes on to one of several, mostly to Triton's.
        inner = [getattr(backend, "_triton_scheduling", backend) for backend in backends.values()]
        return tuple(name for backend in inner for name in list_class_names(backend))

    def record_failure(self, place: str, nodes: tuple[str, ...], error: BaseException, operator: str) -> None:
        """Note where an exception rose first; ``operator`` is the one whose code was being written."""
        if self.failed is None:
            lines = str(error).strip().splitlines()
            message = f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MESSAGE]
            source, line, function = find_raise_place(error)
            # The functions that analyse or write the code of an operator are called as it is.
            named = tuple(dict.fromkeys(name for name in (operator, function) if place == CODEGEN and name))
            self.failed = LoweringFailure(place, nodes, None, message, source, line, named)

    def record_refusal(self, kernel: Kernel, error: BaseException) -> None:
        """Note that a compiler refused the generated code of a kernel."""
        if self.failed is None:
            self.failed = LoweringFailure(CODEGEN, kernel.nodes, kernel.name, type(error).__name__, refused=str(error))


def list_class_names(instance: object) -> tuple[str, ...]:
    """The names of the classes of an object, most derived first."""
    return tuple(base.__name__ for base in type(instance).__mro__)
