"""Running one side of a profile, with taps at the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn

from fuzzcompile.case import Case
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import compiling, plainly
from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.execution.building import Program, build
from fuzzcompile.execution.observation import Observation
from fuzzcompile.execution.runs import observe
from fuzzcompile.execution.seeds import Kept
from fuzzcompile.profiling.kept import KeptCall, KeptTensor
from fuzzcompile.profiling.layers import layers_of
from fuzzcompile.profiling.sides import Side
from fuzzcompile.profiling.taps import Event, calls_in, tapped

# The row of what the program returns; no module has a name with a blank.
WHOLE = "(whole program)"
Calls = dict[tuple[str, int], KeptCall]


class CannotRun(FuzzcompileError):
    """The program raises in one of the ways that are to be compared (exit status 3)."""


@dataclass(frozen=True)
class SideRun:
    """What one side showed.

    Attributes:
        calls: of the layers, by name and number, in the order in which they ended; what the program returned is last.
        observation: the run, with gradients.
        exact: the same in float64; empty if this side has no float64 form.
        ledger: what the compiler did, if one ran.
        notes: what could not be looked at.
    """

    calls: Calls
    observation: Observation
    exact: Calls
    ledger: Ledger | None = None
    notes: tuple[str, ...] = ()


def run_side(case: Case, device: torch.device, side: Side, depth: int | None, *, exact: bool = True) -> SideRun:
    """Run ``case`` as ``side`` says.

    Args:
        case: the case.
        device: where sides run that name no device of their own.
        side: anything but a recording.
        depth: which modules are layers (:func:`~fuzzcompile.profiling.layers.layers_of`).
        exact: run it in float64 as well, to tell a change of meaning from rounding.

    Raises:
        CannotRun: the program raises.
    """
    case, device = side.adapted(case), side.device(device)
    if side.is_compiled:
        return _compiled(case, device, side, depth, exact=exact)
    native = _eager(case, device, side, depth, double=False)
    if not exact or side.kind in ("eager", "float64", "dtype"):
        return native
    try:
        return _with_exact(native, _eager(case, device, side, depth, double=True))
    except CannotRun as error:
        return _without_exact(native, f"{side} has no float64 form here ({error})")


def _with_exact(native: SideRun, double: SideRun) -> SideRun:
    return SideRun(native.calls, native.observation, double.calls, native.ledger, native.notes)


def _without_exact(native: SideRun, why: str) -> SideRun:
    return SideRun(native.calls, native.observation, {}, native.ledger, (*native.notes, why))


def _eager(case: Case, device: torch.device, side: Side, depth: int | None, *, double: bool) -> SideRun:
    program = build(case, device, double=double)
    return run_eagerly(case, program, side, depth, side.numerics(program.dtype))


def run_eagerly(
    case: Case, program: Program, side: Side, depth: int | None, numerics: AbstractContextManager[object]
) -> SideRun:
    """Run the program in eager mode, with taps, under ``numerics``.

    Raises:
        CannotRun: the program raises.
    """
    layers, events = layers_of(program, depth), list[Event]()
    with side.attention(), tapped(layers, events), numerics:
        observation = observe(case, program, program.model)
    refuse_failed(case, side, observation)
    return SideRun(collected(events, layers, observation), observation, {})


def _compiled(case: Case, device: torch.device, side: Side, depth: int | None, *, exact: bool) -> SideRun:
    how = side.compilation()
    assert how is not None
    with compiling(case.settings, how) as session:
        program = build(case, device)
        layers, events = layers_of(program, depth), list[Event]()
        kept = Kept(case, program, device) if exact and how.record else None
        with tapped(layers, events):
            target = session.compile(program.model)
            observation = observe(case, program, target, describe_failure=session.describe_failure)
            refuse_failed(case, side, observation)
            native = SideRun(collected(events, layers, observation), observation, {}, session.ledger)
            if kept is None:
                return native
            session.stop_capturing()
            kept.restore()
            with session.in_float64():
                double = observe(case, program, target, describe_failure=session.describe_failure)
    if double.failure is not None:
        return _without_exact(native, f"the compiled graphs do not run in float64 ({double.failure})")
    return _with_exact(native, SideRun(collected(events, layers, double), double, {}))


def untapped(case: Case, device: torch.device, side: Side) -> Observation:
    """What the side shows when nothing is watched, as a user runs it."""
    how = side.compilation()
    assert how is not None
    with plainly(case.settings, how) as session:
        program = build(case, device)
        return observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)


def collected(events: list[Event], layers: Mapping[str, nn.Module], observation: Observation) -> Calls:
    """The calls that the taps saw, and what the program returned behind them."""
    kinds = {name: type(module).__name__ for name, module in layers.items()}
    calls = {(call.name, call.number): call for call in calls_in(events, kinds)}
    calls[WHOLE, 0] = KeptCall(WHOLE, 0, "program", [], returned(observation))
    return calls


def returned(observation: Observation) -> Sequence[KeptTensor]:
    """The tensors among the outputs of a run."""
    tensors = [value.value for value in observation.values if value.kind == "output"]
    return [KeptTensor.of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def refuse_failed(case: Case, side: Side, observation: Observation) -> None:
    """Refuse a run that raised.

    Raises:
        CannotRun: naming the error.
    """
    if observation.failure is not None:
        raise CannotRun(f"{case.name} raises as {side}: {observation.failure}; fuzzcompile triage judges that.")
