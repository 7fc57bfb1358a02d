"""The ways to run a model that a profile compares, by the names that users give them, and their runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

from fuzzcompile.analyses.profile.side_names import spelled
from fuzzcompile.analyses.profile.taps import (
    Collector,
    Event,
    Keeping,
    KeptCall,
    KeptTensor,
    calls_in,
    find_layers,
    tapped,
    watched,
)
from fuzzcompile.compiler.compile_changes import TRACE_ONLY, CompileMode, Veto
from fuzzcompile.compiler.session import Compilation, list_modes, open_plain_session, open_session
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.attention_backends import force_kernel
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build
from fuzzcompile.run.device import resolve_device
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import SavedTensors, observe
from fuzzcompile.run.tensors import map_tree


@dataclass(frozen=True)
class Side:
    """One way to run a model."""

    kind: str  # the name before the colon, or ``recording``
    argument: str = ""  # what stands behind it: a mode, an index, a kernel, a dtype, the path of a recording

    def __str__(self) -> str:
        """As the user spells it."""
        if self.kind == "recording":
            return self.argument
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def is_compiled(self) -> bool:
        """Return whether a compiler makes this run."""
        return self.kind in ("inductor", "aot_eager")

    @property
    def is_exact(self) -> bool:
        """Return whether it computes in float64 whatever the program's dtypes are."""
        return self.kind == "float64"

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that floating tensors are converted to; None leaves them."""
        return getattr(torch, self.argument) if self.kind == "dtype" else None

    def device(self, default: torch.device) -> torch.device:
        """Return the side's device, if other sides run on ``default``; EnvironmentUnfit if there is no such device."""
        return resolve_device(str(self)) if self.kind in ("cpu", "cuda") else default

    def compilation(self, vetoes: tuple[str, ...] = ()) -> Compilation:
        """Return the compilation of a compiled side, with these rewrites refused."""
        if self.kind == "inductor":
            return Compilation((Veto(vetoes), *([CompileMode(self.argument)] if self.argument else [])))
        return Compilation((Veto(vetoes), TRACE_ONLY), record=False)

    def attention(self) -> contextlib.AbstractContextManager[object]:
        """A context in which attention takes the kernel of this side, if it names one."""
        return force_kernel(self.argument) if self.kind == "sdpa" else contextlib.nullcontext()

    def numerics(self, native: torch.dtype) -> contextlib.AbstractContextManager[object]:
        """A context in which operators compute in float64, if this side is ``float64``."""
        return exactly(native) if self.is_exact else contextlib.nullcontext()

    def built(self, case: Case, default: torch.device, *, double: bool = False) -> CaseProgram:
        """Fresh state of the case in the dtype of this side, or float64, on its device or else ``default``."""
        program = build(case, self.device(default), double=double or self.is_exact)
        dtype = self.dtype
        if dtype is None:
            return program

        def narrow(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        for tensor in program.collect_tensors().values():
            tensor.data = narrow(tensor.data)
        return replace(program, calls=map_tree(narrow, program.calls), dtype=dtype)


EAGER = Side("eager")


def exactly(native: torch.dtype) -> Float64Mode:
    """A mode in which every operator of a program in ``native`` precision computes in float64."""
    return Float64Mode(keep_casts=False, native=native)


def parse(text: str) -> Side:
    """The side that ``text`` names; UsageError if it names none."""
    return Side(*spelled(text, list_modes()))


def parse_pair(against: Side, reference: Side, device: torch.device) -> str:
    """The kind of pair, by which :mod:`fuzzcompile.model.tolerances` lists what the sides may differ by."""
    kinds = {against.kind, reference.kind}
    if kinds & {"dtype", "float64"}:
        return "across_dtypes"
    places = {side.device(device).type for side in (against, reference) if side.kind != "recording"}
    if len(places) > 1 or "recording" in kinds:
        return "across_devices"
    return "across_backends" if kinds & {"sdpa", "aot_eager"} else "same_backend"


# The row of what the program returns; no module has a name with a blank.
WHOLE = "(whole program)"
Calls = Mapping[tuple[str, int], KeptCall]


class CannotRun(FuzzcompileError):
    """The program raises in one of the ways that are to be compared (exit status 3)."""


@dataclass(frozen=True)
class Look:
    """Choice of what a run observes."""

    depth: int | None = None  # which modules are layers (:func:`~fuzzcompile.analyses.profile.taps.find_layers`)
    budget: int = 2**30  # bytes of activations to keep; beyond that they are sampled
    vetoes: tuple[str, ...] = ()  # rewrites to refuse in a compile
    operators: bool = False  # look at every operator instead of at layers; not in compiled runs, which fuse them


BLOCKS = Look()


@dataclass(frozen=True)
class SideRun:
    """Observations of one side; ``calls`` are in the order in which they ended, what the program returned last."""

    calls: Calls
    observation: Observation  # the run, with gradients
    exact: SideRun | None = None  # the same in float64; None if this side has no float64 form
    notes: tuple[str, ...] = ()  # what could not be looked at


def run_side(case: Case, device: torch.device, side: Side, look: Look) -> SideRun:
    """Run ``case`` as ``side`` (no recording), and in float64 too where that differs; `CannotRun` if it raises."""
    if side.is_compiled:
        return _run_compiled(case, device, side, look)
    native = run_once(case, device, side, look, Keeping(look.budget))
    if side.kind in ("eager", "float64", "dtype"):
        return native
    try:
        return replace(native, exact=run_once(case, device, side, look, Keeping(look.budget), double=True))
    except CannotRun as error:
        return replace(native, notes=(f"{side} has no float64 form here ({error})",))


def run_once(
    case: Case, device: torch.device, side: Side, look: Look, keep: Keeping, *, double: bool = False
) -> SideRun:
    """Run ``case`` once, without a compiler, with its tensors in float64 if it is ``double``."""
    program = side.built(case, device, double=double)
    return run_eagerly(case, program, side, look, side.numerics(program.dtype), keep)


def run_eagerly(
    case: Case,
    program: CaseProgram,
    side: Side,
    look: Look,
    numerics: AbstractContextManager[object],
    keep: Keeping | None = None,
) -> SideRun:
    """Run the program in eager mode, with taps, under ``numerics``."""
    collector = Collector(keep or Keeping(look.budget), {})
    with side.attention(), watched(program, look.depth, collector, operators=look.operators) as called, numerics:
        observation = observe(case, program, called)
    refuse_failed(case, side, observation)
    return _side_run(collector.calls, observation)


def _side_run(calls: Calls, observation: Observation) -> SideRun:
    whole = KeptCall(WHOLE, 0, "program", [], returned(observation))
    return SideRun({**calls, (WHOLE, 0): whole}, observation)


def _run_compiled(case: Case, device: torch.device, side: Side, look: Look) -> SideRun:
    how = side.compilation(look.vetoes)
    with open_session(case.settings, how) as session:
        program = side.built(case, device)
        layers, events = find_layers(program, look.depth), list[Event]()
        kept = SavedTensors(case, program, side.device(device)) if how.record else None
        with tapped(layers, events) as put_taps_back:
            target = session.compile(program.model)
            observation = observe(case, program, target, describe_failure=session.describe_failure)
            refuse_failed(case, side, observation)
            native = _side_run(calls_in(events, layers, Keeping(look.budget)), observation)
            if kept is None:
                return replace(native, notes=(f"{side} was not run in float64",))
            session.stop_capturing()
            kept.restore()
            put_taps_back()
            with session.interpret_in_float64():
                double = observe(case, program, target, describe_failure=session.describe_failure)
    if double.failure is not None:
        return replace(native, notes=(f"the compiled graphs do not run in float64 ({double.failure})",))
    return replace(native, exact=_side_run(calls_in(events, layers, Keeping(look.budget)), double))


def run_untapped(case: Case, device: torch.device, side: Side, look: Look) -> Observation:
    """Run a compiled side without taps, as a user runs it."""
    how = replace(side.compilation(look.vetoes), record=False)
    open_ = open_session if look.vetoes else open_plain_session
    with open_(case.settings, how) as session:
        program = side.built(case, device)
        return observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)


def returned(observation: Observation) -> Sequence[KeptTensor]:
    """The tensors among the outputs of a run."""
    tensors = [value.value for value in observation.values if value.kind == "output"]
    return [KeptTensor.of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def refuse_failed(case: Case, side: Side, observation: Observation) -> None:
    """Raise `CannotRun`, naming the error, for a run that raised."""
    if observation.failure is not None:
        raise CannotRun(f"{case.name} raises as {side}: {observation.failure}; triage judges that.")
