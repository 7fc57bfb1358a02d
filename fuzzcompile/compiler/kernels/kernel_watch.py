"""State of a compile that is watched behind its graph passes, and the callbacks of its generated wrapper."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.watch.ledger import (
    KEPT_BYTES,
    GraphCall,
    KernelStatement,
    LoweredGraph,
    OverwrittenBuffer,
    Unseen,
    format_reason,
)
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS, Recorder
from fuzzcompile.model.stages import CODEGEN, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor.scheduler import BaseSchedulerNode


# Callbacks of the wrapper of a watched compile: before and after every kernel, and once the graph returned.

Note = Callable[[Exception], None]
_watched_graphs: dict[int, tuple[LoweredGraph, Note]] = {}
_keys = itertools.count(1)


def register_graph(lowered: LoweredGraph, note: Note) -> int:
    """A key under which the generated wrapper calls back; ``note`` writes down errors of the watching."""
    key = next(_keys)
    _watched_graphs[key] = lowered, note
    return key


def format_callback(key: int, function: str, number: int) -> str:
    """A line of a generated wrapper that calls ``before_kernel`` or ``after_kernel`` here."""
    package, _, rest = __name__.partition(".")
    return f"__import__('{package}.{rest}').{rest}.{function}({key}, {number}, locals())"


def before_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` is about to be called: its arguments should hold what was written to them."""

    def check(lowered: LoweredGraph, call: GraphCall) -> None:
        call.running = number
        for name in lowered.kernels[number].reads:
            value, last = variables.get(name), call.last.get(name)
            if last is not None and isinstance(value, torch.Tensor) and not _has_same_bits(value, last[1]):
                call.overwritten.append(OverwrittenBuffer(name, last[0], number))
                del call.last[name]

    _watch_execution(key, check, starts=number == 0)


def after_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` returned: keep what it wrote."""

    def keep(lowered: LoweredGraph, call: GraphCall) -> None:
        call.running = None
        renamed = getattr(lowered.scheduler, "mutation_real_name", {})
        for name in lowered.kernels[number].writes:
            variable = renamed.get(name, name)
            value = variables.get(variable)
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                call.kept += value.untyped_storage().nbytes()
                if call.kept <= KEPT_BYTES:
                    kept = value.detach().clone()
                    call.written[number, name] = kept
                    call.last[variable] = number, kept

    _watch_execution(key, keep)


def at_return(key: int, inputs: Sequence[object], outputs: object) -> None:
    """Graph ``key`` returned."""

    def keep(lowered: LoweredGraph, call: GraphCall) -> None:
        call.last.clear()
        listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        call.outputs = list(map(_copy, listed))
        names = list(lowered.graph.graph_inputs)
        mutated = {names.index(name) for name in lowered.graph.mutated_inputs if name in names}
        # Inputs that the graph writes to, whatever became of that in the lowering.
        placeholders = (node for node in lowered.snapshot.graph.nodes if node.op == "placeholder")
        for place, node in enumerate(placeholders):
            users = (user for user in node.users if user.op == "call_function" and user.args[:1] == (node,))
            written = place in mutated or any("copy_" in str(user.target) for user in users)
            copied = _copy(inputs[place]) if written else None
            if isinstance(copied, torch.Tensor):
                call.inputs_after[place] = copied

    _watch_execution(key, keep)


def _copy(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _has_same_bits(value: torch.Tensor, kept: torch.Tensor) -> bool:
    if value.shape != kept.shape or value.dtype != kept.dtype:
        return True  # another view of it
    return bool(((value == kept) | ((value != value) & (kept != kept))).all())


def _watch_execution(key: int, run: Callable[[LoweredGraph, GraphCall], None], *, starts: bool = False) -> None:
    """Run a function on the execution of a graph that is under way, if it is watched; its errors are noted only."""
    if key not in _watched_graphs:
        return
    lowered, note = _watched_graphs[key]
    calls = lowered.calls
    if not calls or calls[-1].outputs is not None or (starts and bool(calls[-1].written)):
        if len(calls) > CAPTURED_CALLS:
            return
        calls.append(GraphCall())
    if len(calls) <= CAPTURED_CALLS:
        try:
            run(lowered, calls[-1])
        except Exception as error:
            note(error)
            calls[-1].kept = KEPT_BYTES


@dataclass
class LoweringWatch:
    """State of one watched compile, which keeps what kernels write (``values``) in ``recorder.ledger.lowered``."""

    recorder: Recorder
    control: Control
    values: bool
    pending: dict[str, tuple[BaseSchedulerNode, ...]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    compiled: dict[int, int] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    statements: list[KernelStatement] = field(default_factory=list)
    raised_in: str | None = None

    def find_lowered(self, graph: object) -> LoweredGraph | None:
        """Return the record of a graph that is lowered; None for the body of a higher-order operator."""
        return next((lowered for lowered in reversed(self.recorder.ledger.lowered) if lowered.graph is graph), None)

    def find_current(self) -> LoweredGraph | None:
        """Return the record of the graph that code is generated for now."""
        from torch._inductor.virtualized import V

        return self.find_lowered(V.graph)

    @contextlib.contextmanager
    def write_operator(self, operator: str) -> Iterator[None]:
        """Code for an operator of a loop is written in this block; they may be nested."""
        self.operators.append(operator)
        try:
            yield
        except Exception:  # re-raised: only noted here
            self.raised_in = self.raised_in or operator
            raise
        finally:
            self.operators.pop()

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.recorder.record_unseen(unseen, error)

    def note(self, error: Exception) -> None:
        """Write down an error of the watching, which the compile is kept from."""
        self.record_unseen(
            Unseen("kernels", format_reason(error), (LOWERING, SCHEDULER, CODEGEN), "values of kernels"), error
        )

    def close(self) -> None:
        """Keep nothing of further calls."""
        for key in self.keys.values():
            _watched_graphs.pop(key, None)


def list_operator_names(nodes: Sequence[BaseSchedulerNode]) -> tuple[str, ...]:
    """Names of the FX nodes behind scheduler nodes, in the order of their graph."""
    origins: dict[fx.Node, None] = {}
    for scheduled in nodes:
        for part in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            for origin in getattr(getattr(part, "node", None), "origins", ()):
                if origin.op == "call_function":
                    origins[origin] = None
    return tuple(node.name for node in sorted(origins))
