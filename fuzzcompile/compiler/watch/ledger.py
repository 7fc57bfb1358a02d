"""The ledger: every rewrite of one compile, the graphs between them, and the record of lowering and kernels."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from fuzzcompile.compiler.target.kernel_log import KernelLog
from fuzzcompile.compiler.watch.compiler_errors import find_raise_place
from fuzzcompile.compiler.watch.graph_copies import GraphCopy, GraphState
from fuzzcompile.model.stages import CODEGEN

# Observations that a watched compile missed: the only place where trouble of the watching is written down.

_MOST = 40
_SHOWN = 6
_LONGEST = 200


@dataclass(frozen=True)
class Unseen:
    """Something that was not watched, or not done although it was asked for."""

    what: str  # name of the patch, or of the step of the watching, that did not work
    why: str  # the reason, as an exception's type and message
    stages: tuple[str, ...]  # the stages (:mod:`fuzzcompile.model.stages`) of which something was missed
    # what it would have shown, as the subject of a sentence in the plural ("rewrites of the joint graph")
    shows: str = ""
    harmless: bool = False  # whether no verdict and no culprit can depend on it

    def __str__(self) -> str:
        text = f"not watched: {self.what} ({self.why})"
        return f"{text}: {self.shows} were not seen" if self.shows else text


class UnseenLog(list[Unseen]):
    """Log of missed observations: each once, and at most some forty of them."""

    def note(self, unseen: Unseen) -> None:
        """Write an entry down, here and for every :func:`gather_unseen` around."""
        for log in (self, *_gathering):
            if unseen not in log and len(log) <= _MOST:
                rest = Unseen("further steps", f"more than {_MOST}", unseen.stages)
                log.append(unseen if len(log) < _MOST else rest)

    def has_unseen(self, *stages: str) -> bool:
        """Return whether something that may matter was missed in one of these stages (in any, if none is named)."""
        return any(not unseen.harmless and (not stages or set(stages) & {*unseen.stages}) for unseen in self)


_gathering: list[UnseenLog] = []


@contextlib.contextmanager
def gather_unseen() -> Iterator[UnseenLog]:
    """Gather what goes unseen in every compile inside the block; also a decorator.

    A judgement rests on many compiles, each with a ledger of its own: confirmations, ablations, comparisons.
    """
    log = UnseenLog()
    _gathering.append(log)
    try:
        yield log
    finally:
        _gathering.remove(log)


def get_gathered() -> UnseenLog:
    """Return the log of the innermost :func:`gather_unseen` so far; empty outside of one."""
    return _gathering[-1] if _gathering else UnseenLog()


def format_unseen(unseen: Sequence[Unseen]) -> list[str]:
    """A sentence each, what may matter first; of many, the first few and how many there are."""
    first = sorted(unseen, key=lambda missed: missed.harmless)[:_SHOWN]
    rest = len(unseen) - len(first)
    return [*map(str, first), *([f"not watched: {rest} further steps"] if rest else [])]


def format_reason(error: BaseException) -> str:
    """An exception in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST]


if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler


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


@dataclass
class CallInputs:
    """One execution of a compiled graph: its real inputs, as they were before the call."""

    inputs: list[Any]


@dataclass(frozen=True)
class MetadataAnalysis:
    """Result of the analysis: for each output its kind and if it gets gradients; for each input if it is written to.

    An output's kind is the name of AOTAutograd's ``OutputType`` and the input that it is a view of, if any.
    """

    gradients: Sequence[bool]
    kinds: Sequence[tuple[str, int | None]]
    written: Sequence[bool]
    line: int | None


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

    ``parameters`` are those that dynamo left inside its graph, as it does where they will be frozen. ``analysis`` is
    what AOTAutograd said of the graph's inputs and outputs.
    """

    index: int
    records: list[GraphRecord] = field(default_factory=list)
    dynamo_calls: list[CallInputs] = field(default_factory=list)
    forward_calls: list[CallInputs] = field(default_factory=list)
    backward_calls: list[CallInputs] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    partitions: list[GraphPartition] = field(default_factory=list)
    analysis: MetadataAnalysis | None = None

    def find_record(self, stage: str, direction: str | None = None) -> GraphRecord | None:
        """The record of a stage (and direction), or None where the stage did not run."""
        for record in self.records:
            if record.stage == stage and direction in (None, record.direction):
                return record
        return None


Outcome = Literal["fired", "refused", "vetoed"]


@dataclass(frozen=True)
class ReachedRule:
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
    lowered: list[LoweredGraph] = field(default_factory=list)
    reached: Counter[ReachedRule] = field(default_factory=Counter)
    interpreted: KernelLog = field(default_factory=KernelLog)
    checks: Counter[tuple[Label, str]] = field(default_factory=Counter)
    changed_tangents: list[ChangedTangent] = field(default_factory=list)

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.unseen.note(unseen)

    def has_unseen(self, *stages: str) -> bool:
        """Return whether the ledger missed something that may matter in one of these stages (in any, if none is named).

        A veto in such a stage may never have run: that the divergence stays says nothing then, and an empty record of
        the stage does not show that nothing happened in it.
        """
        return self.unseen.has_unseen(*stages)

    def list_rewrites(self) -> list[tuple[Frame, GraphRecord, Rewrite]]:
        """All rewrites of all frames, in the order in which they happened."""
        return [
            (frame, record, rewrite) for frame in self.frames for record in frame.records for rewrite in record.rewrites
        ]


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
    vetoed_is_right: bool = False  # whether the vetoed compile gave the right result
    # what a fake tensor says of an operator whose description is wrong and whose kernel is to be asked
    metadata: tuple[int, ...] = ()

    def list_ledgers(self) -> Sequence[Ledger]:
        """The ledgers of all compiles."""
        return self.trained, self.inferred, self.frozen, self.vetoed, self.generated, self.changed


Keep = Callable[[dict[str, Any]], dict[str, Any]]


def take_snapshot(
    module: fx.GraphModule, opaque: Mapping[int, Opaque], keep: Keep = dict, state: GraphState | None = None
) -> Snapshot:
    """Copy a graph; the live one is never sorted or touched.

    Submodules (bodies of higher-order operators) are copied with their graphs. ``keep`` copies what the graph names
    in its module; without it, tensors are shared. ``state`` is the graph as it stands, where that is known.
    """
    state = state or GraphState(module)
    return Snapshot(GraphCopy(state), collect_attributes(state, keep), dict(opaque))


def is_lowering_handler(target: object) -> bool:
    """Return whether a node's target is the Python handler (a ``functools.partial``) of a lowering pattern."""
    return isinstance(target, functools.partial)


def collect_attributes(state: GraphState, keep: Keep = dict) -> dict[str, Any]:
    """Return the values that the get_attr and call_module nodes of a graph name, submodules copied."""
    children = iter(state.children)
    return keep(
        {
            name: _copy_module(next(children), keep) if isinstance(value, fx.GraphModule) else value
            for name, value in state.held
        }
    )


def _copy_module(state: GraphState, keep: Keep) -> fx.GraphModule:
    return fx.GraphModule(collect_attributes(state, keep), GraphCopy(state).build())


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
    """One execution: what each kernel wrote, by kernel and buffer, what it returned, and what it left in its inputs.

    ``running`` is the kernel that never returned.
    """

    written: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    overwritten: list[OverwrittenBuffer] = field(default_factory=list)
    outputs: list[object] | None = None
    inputs_after: dict[int, torch.Tensor] = field(default_factory=dict)
    running: int | None = None
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    kept: int = 0


@dataclass(frozen=True)
class LoweringFailure:
    """Place behind the passes where an exception rose: the operator being lowered, or the kernel being made or run.

    ``place`` is the stage at work. ``source`` and ``line`` are those of the compiler's code that raised; ``operators``
    are those whose code could not be written. ``refused`` is the whole message of the compiler that the generated
    code was given to, if it refused that.
    """

    place: str
    nodes: tuple[str, ...] = ()
    kernel: str | None = None
    message: str = ""
    source: str | None = None
    line: int | None = None
    operators: tuple[str, ...] = ()
    refused: str | None = None


@dataclass
class LoweredGraph:
    """One graph that was lowered; ``snapshot`` is what was lowered, ``values`` the IR of each node.

    ``marks`` says how many operations of the IR there were once a node was lowered. ``sources``, ``statements`` and
    ``generators`` (the classes of the code generator, most derived first) go by the names of kernels. ``cudagraphs``
    says that Inductor found no reason against recording the compiled graph as a CUDA graph. ``program`` is the text of
    the generated program.
    """

    frame: int
    direction: str
    graph: GraphLowering
    snapshot: Snapshot
    labels: Mapping[str, str]
    values: dict[str, object] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    statements: dict[str, list[KernelStatement]] = field(default_factory=dict)
    generators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scheduler: Scheduler | None = None
    calls: list[GraphCall] = field(default_factory=list)
    failed: LoweringFailure | None = None
    cudagraphs: bool = False
    program: str = ""

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

    def record_failure(
        self,
        place: str,
        nodes: tuple[str, ...],
        error: BaseException,
        kernel: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Note where an exception rose first; ``operator`` is the one whose code was being written."""
        if self.failed is None:
            lines = str(error).strip().splitlines()
            message = f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MESSAGE]
            source, line, function = find_raise_place(error)
            # The functions that analyse or write the code of an operator are called as it is.
            named = tuple(dict.fromkeys(name for name in (operator, function) if place == CODEGEN and name))
            self.failed = LoweringFailure(place, nodes, kernel, message, source, line, named)

    def record_refusal(self, kernel: Kernel, error: BaseException) -> None:
        """Note that a compiler refused the generated code of a kernel."""
        if self.failed is None:
            self.failed = LoweringFailure(CODEGEN, kernel.nodes, kernel.name, type(error).__name__, refused=str(error))


def list_class_names(instance: object) -> tuple[str, ...]:
    """The names of the classes of an object, most derived first."""
    return tuple(base.__name__ for base in type(instance).__mro__)
