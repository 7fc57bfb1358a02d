"""Record of one watched compile behind a graph's passes: the IR, the kernels and the values that they wrote."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import fx

from fuzzcompile.compiler.kernels.raised import raised_at
from fuzzcompile.compiler.kernels.statements import Statement
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.stage_names import CODEGEN

if TYPE_CHECKING:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler

# What kernels wrote is kept up to this size, a graph and call.
KEPT_BYTES = 512 * 2**20
_MESSAGE = 300


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
class Overwritten:
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
    overwritten: list[Overwritten] = field(default_factory=list)
    outputs: list[object] | None = None
    inputs_after: dict[int, torch.Tensor] = field(default_factory=dict)
    running: int | None = None
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    kept: int = 0


@dataclass(frozen=True)
class Failed:
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
class Lowered:
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
    statements: dict[str, list[Statement]] = field(default_factory=dict)
    generators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scheduler: Scheduler | None = None
    calls: list[GraphCall] = field(default_factory=list)
    failed: Failed | None = None
    cudagraphs: bool = False
    program: str = ""

    def node(self, name: str) -> fx.Node | None:
        """The node of that name in the graph that was lowered."""
        return next((node for node in self.snapshot.graph.nodes if node.name == name), None)

    def producer(self, name: str) -> str:
        """The operator behind one of its several results; any other node is its own."""
        node = self.node(name)
        while node is not None and node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return node.name if node is not None else name

    def kernel(self, name: str | None) -> Kernel | None:
        """The first call of the kernel of that name."""
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def code_generators(self, kernel: str | None) -> tuple[str, ...]:
        """The classes of the code generator of a kernel; of all that the scheduler uses if it is not known."""
        if kernel in self.generators:
            return self.generators[kernel]
        backends: Mapping[object, object] = getattr(self.scheduler, "backends", {})
        # The backend of a GPU hands the nodes on to one of several, mostly to Triton's.
        inner = [getattr(backend, "_triton_scheduling", backend) for backend in backends.values()]
        return tuple(name for backend in inner for name in class_names(backend))

    def failure(
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
            source, line, function = raised_at(error)
            # The functions that analyse or write the code of an operator are called as it is.
            named = tuple(dict.fromkeys(name for name in (operator, function) if place == CODEGEN and name))
            self.failed = Failed(place, nodes, kernel, message, source, line, named)

    def refused(self, kernel: Kernel, error: BaseException) -> None:
        """Note that a compiler refused the generated code of a kernel."""
        if self.failed is None:
            self.failed = Failed(CODEGEN, kernel.nodes, kernel.name, type(error).__name__, refused=str(error))


def class_names(instance: object) -> tuple[str, ...]:
    """The names of the classes of an object, most derived first."""
    return tuple(base.__name__ for base in type(instance).__mro__)
