"""What one watched compile keeps of everything behind a graph's passes: its IR, its kernels and what they wrote."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from fuzzcompile.compiler.kernels.raised import raised_at
from fuzzcompile.compiler.kernels.statements import Statement, complaint, refused_operators
from fuzzcompile.compiler.ledger import Snapshot

Place = Literal["lowering", "scheduler", "codegen", "runtime"]
# What kernels wrote is kept up to this size, a graph and call.
KEPT_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Kernel:
    """One call of a kernel: ``nodes`` are the operators that it computes, ``writes`` its buffers in the IR's names."""

    number: int
    name: str
    extern: bool
    nodes: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    scheduled: tuple[Any, ...] = ()


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
    outputs: list[Any] | None = None
    inputs_after: dict[int, torch.Tensor] = field(default_factory=dict)
    running: int | None = None
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    kept: int = 0


@dataclass(frozen=True)
class Failed:
    """Where behind the passes an exception rose: while which operator was lowered, or which kernel was made or run.

    ``source`` and ``line`` are those of the compiler's code that raised; ``operators`` are those of the kernel's code
    that could not be written, or that a C++ compiler refused.
    """

    place: Place
    nodes: tuple[str, ...] = ()
    kernel: str | None = None
    message: str = ""
    source: str | None = None
    line: int | None = None
    operators: tuple[str, ...] = ()


@dataclass
class Lowered:
    """One graph that was lowered; ``snapshot`` is what was lowered, ``values`` the IR of each node.

    ``marks`` says how many operations of the IR there were once a node was lowered.
    """

    frame: int
    direction: str
    graph: Any
    snapshot: Snapshot
    labels: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    statements: dict[str, list[Statement]] = field(default_factory=dict)
    scheduler: Any = None
    calls: list[GraphCall] = field(default_factory=list)
    failed: Failed | None = None

    def node(self, name: str) -> fx.Node | None:
        """The node of that name in the graph that was lowered."""
        return next((node for node in self.snapshot.graph.nodes if node.name == name), None)

    def producer(self, name: str) -> str:
        """The operator behind one of its several results; any other node is its own."""
        node = self.node(name)
        while node is not None and node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return node.name if node is not None else name

    def failure(
        self,
        place: Place,
        nodes: tuple[str, ...],
        error: BaseException,
        kernel: str | None = None,
        operator: str | None = None,
    ) -> None:
        """Note where an exception rose first; ``operator`` is the one whose code was being written."""
        if self.failed is None:
            lines = str(error).strip().splitlines()
            message = f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
            source, line, function = raised_at(error)
            # The functions that analyse or write the code of an operator are called as it is.
            named = tuple(dict.fromkeys(name for name in (operator, function) if place == "codegen" and name))
            self.failed = Failed(place, nodes, kernel, message, source, line, named)

    def refused(self, kernel: Kernel, error: BaseException) -> None:
        """Note that a kernel's C++ does not compile, and what of it the compiler refused."""
        if self.failed is None:
            text = str(error)
            operators = refused_operators(self.statements.get(kernel.name, ()), text)
            message = f"{type(error).__name__}: {complaint(text) or ''}"[:300]
            self.failed = Failed("codegen", kernel.nodes, kernel.name, message, operators=operators)
