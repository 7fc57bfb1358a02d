"""Callbacks of the wrapper of a watched compile: before and after every kernel, and once the graph returned.

Nothing here may raise into the program that is watched.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from fuzzcompile.compiler.kernels.lowered import KEPT_BYTES, GraphCall, Lowered, Overwritten
from fuzzcompile.compiler.recorder import CAPTURED_CALLS

Note = Callable[[Exception], None]
_watched: dict[int, tuple[Lowered, Note]] = {}
_keys = itertools.count(1)


def register(lowered: Lowered, note: Note) -> int:
    """A key under which the generated wrapper calls back; ``note`` writes down errors of the watching."""
    key = next(_keys)
    _watched[key] = lowered, note
    return key


def forget(key: int) -> None:
    """Watch that graph no more."""
    _watched.pop(key, None)


def callback(key: int, function: str, number: int) -> str:
    """A line of a generated wrapper that calls ``before_kernel`` or ``after_kernel`` here."""
    package, _, rest = __name__.partition(".")
    return f"__import__('{package}.{rest}').{rest}.{function}({key}, {number}, locals())"


def before_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` is about to be called: its arguments should hold what was written to them."""
    call = _call(key, starts=number == 0)
    if call is None:
        return
    call.running = number
    with _guarded(key):
        for name in _watched[key][0].kernels[number].reads:
            value, last = variables.get(name), call.last.get(name)
            if last is not None and isinstance(value, torch.Tensor) and not _same_bits(value, last[1]):
                call.overwritten.append(Overwritten(name, last[0], number))
                del call.last[name]


def after_kernel(key: int, number: int, variables: dict[str, object]) -> None:
    """Kernel ``number`` of graph ``key`` returned: keep what it wrote."""
    call = _call(key, starts=False)
    if call is None:
        return
    call.running = None
    with _guarded(key):
        lowered, _ = _watched[key]
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
    call = _call(key, starts=False)
    if call is None:
        return
    call.last.clear()
    with _guarded(key):
        lowered, _ = _watched[key]
        listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        call.outputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in listed]
        names = list(lowered.graph.graph_inputs)
        mutated = {names.index(name) for name in lowered.graph.mutated_inputs if name in names}
        for place in _written_inputs(lowered) | mutated:
            value = inputs[place]
            if isinstance(value, torch.Tensor):
                call.inputs_after[place] = value.detach().clone()


def _written_inputs(lowered: Lowered) -> set[int]:
    """Positions of the inputs that the graph writes to, whatever became of that in the lowering."""
    inputs = [node for node in lowered.snapshot.graph.nodes if node.op == "placeholder"]
    return {
        place
        for place, node in enumerate(inputs)
        for user in node.users
        if user.op == "call_function" and "copy_" in str(user.target) and user.args[:1] == (node,)
    }


def _call(key: int, *, starts: bool) -> GraphCall | None:
    """The execution under way; None where no more are watched."""
    if key not in _watched:
        return None
    lowered, _ = _watched[key]
    over = not lowered.calls or lowered.calls[-1].outputs is not None or (starts and bool(lowered.calls[-1].written))
    if over:
        if len(lowered.calls) > CAPTURED_CALLS:
            return None
        lowered.calls.append(GraphCall())
    return lowered.calls[-1] if len(lowered.calls) <= CAPTURED_CALLS else None


def _same_bits(value: torch.Tensor, kept: torch.Tensor) -> bool:
    if value.shape != kept.shape or value.dtype != kept.dtype:
        return True  # another view of it
    return bool(((value == kept) | ((value != value) & (kept != kept))).all())


@contextlib.contextmanager
def _guarded(key: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the program that is watched goes on
        lowered, note = _watched[key]
        note(error)
        if lowered.calls:
            lowered.calls[-1].kept = KEPT_BYTES
