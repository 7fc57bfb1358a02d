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


def forget_graph(key: int) -> None:
    """Watch that graph no more."""
    _watched_graphs.pop(key, None)


def format_callback(key: int, function: str, number: int) -> str:
    """A line of a generated wrapper that calls ``before_kernel`` or ``after_kernel`` here."""
    package, _, rest = __name__.partition(".")
    return f"__import__('{package}.{rest}').{rest}.{function}({key}, {number}, locals())"


def before_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` is about to be called: its arguments should hold what was written to them."""
    call = _get_execution(key, starts=number == 0)
    if call is None:
        return
    call.running = number
    with _contain_errors(key):
        for name in _watched_graphs[key][0].kernels[number].reads:
            value, last = variables.get(name), call.last.get(name)
            if last is not None and isinstance(value, torch.Tensor) and not _has_same_bits(value, last[1]):
                call.overwritten.append(OverwrittenBuffer(name, last[0], number))
                del call.last[name]


def after_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` returned: keep what it wrote."""
    call = _get_execution(key, starts=False)
    if call is None:
        return
    call.running = None
    with _contain_errors(key):
        lowered, _ = _watched_graphs[key]
        renamed = getattr(lowered.scheduler, "mutation_real_name", {})
        for name in lowered.kernels[number].writes:
            variable = renamed.get(name, name)
            value = variables.get(variable)
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                continue
            call.kept += value.untyped_storage().nbytes()
            if call.kept > KEPT_BYTES:
                continue
            kept = value.detach().clone()
            call.written[number, name] = kept
            call.last[variable] = number, kept


def at_return(key: int, inputs: Sequence[object], outputs: object) -> None:
    """Graph ``key`` returned."""
    call = _get_execution(key, starts=False)
    if call is None:
        return
    call.last.clear()
    with _contain_errors(key):
        lowered, _ = _watched_graphs[key]
        listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        call.outputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in listed]
        names = list(lowered.graph.graph_inputs)
        mutated = {names.index(name) for name in lowered.graph.mutated_inputs if name in names}
        for place in _find_written_inputs(lowered) | mutated:
            value = inputs[place]
            if isinstance(value, torch.Tensor):
                call.inputs_after[place] = value.detach().clone()


def _find_written_inputs(lowered: LoweredGraph) -> set[int]:
    """Positions of the inputs that the graph writes to, whatever became of that in the lowering."""
    inputs = [node for node in lowered.snapshot.graph.nodes if node.op == "placeholder"]
    return {
        place
        for place, node in enumerate(inputs)
        for user in node.users
        if user.op == "call_function" and "copy_" in str(user.target) and user.args[:1] == (node,)
    }


def _get_execution(key: int, *, starts: bool) -> GraphCall | None:
    """The execution under way; None where no more are watched."""
    if key not in _watched_graphs:
        return None
    lowered, _ = _watched_graphs[key]
    over = not lowered.calls or lowered.calls[-1].outputs is not None or (starts and bool(lowered.calls[-1].written))
    if over:
        if len(lowered.calls) > CAPTURED_CALLS:
            return None
        lowered.calls.append(GraphCall())
    return lowered.calls[-1] if len(lowered.calls) <= CAPTURED_CALLS else None


def _has_same_bits(value: torch.Tensor, kept: torch.Tensor) -> bool:
    if value.shape != kept.shape or value.dtype != kept.dtype:
        return True  # another view of it
    return bool(((value == kept) | ((value != value) & (kept != kept))).all())


@contextlib.contextmanager
def _contain_errors(key: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the program that is watched goes on
        lowered, note = _watched_graphs[key]
        note(error)
        if lowered.calls:
            lowered.calls[-1].kept = KEPT_BYTES


@dataclass
class LoweringWatch:
    """State of one watched compile; the graphs go to ``recorder.ledger.lowered``.

    ``values`` says whether what kernels write is kept.
    """

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
            forget_graph(key)


def list_operator_names(nodes: Sequence[BaseSchedulerNode]) -> tuple[str, ...]:
    """Names of the FX nodes behind scheduler nodes, in the order of their graph."""
    origins: dict[fx.Node, None] = {}
    for scheduled in nodes:
        for part in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            for origin in getattr(getattr(part, "node", None), "origins", ()):
                if origin.op == "call_function":
                    origins[origin] = None
    return tuple(node.name for node in sorted(origins))


# Recording which operator each expression of a kernel's code computes, while the code is written.


def wrap_operator(watch: LoweringWatch, original: Callable[..., object]) -> Callable[..., object]:
    """Record for which operator code is written."""

    def write(proxy: object, name: str, *args: object, **kwargs: object) -> object:
        with watch.write_operator(name):
            return original(proxy, name, *args, **kwargs)

    return write


def wrap_load(watch: LoweringWatch, original: Callable[..., object]) -> Callable[..., object]:
    """Record that a load is written."""

    def load(*args: object, **kwargs: object) -> object:
        with watch.write_operator("load"):
            return original(*args, **kwargs)

    return load


def wrap_reduction(watch: LoweringWatch, original: Callable[..., object]) -> Callable[..., object]:
    """Record which reduction is written."""

    def reduction(
        proxy: object, dtype: object, src_dtype: object, kind: str, *args: object, **kwargs: object
    ) -> object:
        with watch.write_operator(f"reduction:{kind}"):
            return original(proxy, dtype, src_dtype, kind, *args, **kwargs)

    return reduction


def wrap_generate(watch: LoweringWatch, original: Callable[..., object]) -> Callable[..., object]:
    """Record the expression written for the innermost operator."""

    def generate(cse: object, buffer: object, expression: object, *args: object, **kwargs: object) -> object:
        variable = original(cse, buffer, expression, *args, **kwargs)
        try:
            if watch.values and watch.operators:
                text = expression.getvalue() if hasattr(expression, "getvalue") else str(expression)
                watch.statements.append(KernelStatement(str(variable), text, watch.operators[-1]))
        except Exception as error:  # the recorder never fails the compile that it watches
            watch.note(error)
        return variable

    return generate
