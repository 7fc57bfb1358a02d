"""``profile``: two ways to run a model, compared layer by layer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.analyses.profile.layer_errors import (
    Distance,
    Layer,
    Mode,
    apart,
    distance,
    gradient_layers,
    relative_step,
)
from fuzzcompile.analyses.profile.layer_verdict import decide
from fuzzcompile.analyses.profile.recordings import replayed
from fuzzcompile.analyses.profile.reference_walk import Known, Walk
from fuzzcompile.analyses.profile.side_runs import (
    BLOCKS,
    WHOLE,
    Look,
    SideRun,
    returned,
    run_eagerly,
    run_side,
    untapped,
)
from fuzzcompile.analyses.profile.sides import EAGER, Side, exactly, parse_pair
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.profile_contract import AttentionCallJson, LayerJson, ProfileJson
from fuzzcompile.model.tolerances import Tolerances
from fuzzcompile.run.arithmetic_modes import UlpNoise
from fuzzcompile.run.attention_backends import (
    MATH_ONLY,
    force_math_kernel,
    record_attention_calls,
    refuse_unless_usable,
)
from fuzzcompile.run.case import Case
from fuzzcompile.run.device import describe_environment
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.runs import observe

_NOISE_SEED = 3
SCHEMA = 1


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile.

    Attributes:
        against: the side that is measured.
        reference: what it is compared with.
        look: which modules are layers, how much of them is kept, and what is refused in compiles.
        tolerances: a TOML file that overrides the table of tolerances.
        math_only: attention takes its math kernel on both sides, and TF32 is off.
    """

    against: Side
    reference: Side = EAGER
    look: Look = BLOCKS
    tolerances: Path | None = None
    math_only: bool = False

    def check(self) -> None:
        """Refuse what cannot be asked, whatever the case is.

        Raises:
            UsageError: operators of a compiled run are asked for, or tolerances that cannot be used.
        """
        Tolerances.load(self.tolerances)
        for side in (self.against, self.reference):
            if self.look.operators and side.is_compiled:
                raise UsageError(
                    f"{side} fuses operators, so that none of them can be looked at alone; leave out --ops, or raise "
                    "--depth: the layer of a jump is triaged down to its rewrite."
                )


def profile(case: Case, device: torch.device, asked: ProfileOptions) -> ProfileJson:
    """Compare two ways to run the case, layer by layer.

    Raises:
        CannotRun: the case raises in one of them.
        EnvironmentUnfit: there is no such device or kernel here.
        UsageError: the tolerances or the recording cannot be used, or operators of a compiled run are asked for.
    """
    asked.check()
    start = time.perf_counter()
    table = Tolerances.load(asked.tolerances)
    with force_math_kernel() if asked.math_only else contextlib.nullcontext():
        measured = _Profile(case, device, asked).measured()
    dtype = str(measured.dtype).removeprefix("torch.")
    tolerance = table.for_pair(parse_pair(asked.against, asked.reference, device), dtype)
    *layers, whole = measured.layers
    verdict = decide(
        layers, whole, measured.gradients, tolerance, whole_exact=measured.whole_exact, repeats=measured.repeats
    )
    return {
        "schema": SCHEMA,
        "case": case.name,
        "torch": str(torch.__version__),
        "device": str(device),
        "against": str(asked.against),
        "reference": str(asked.reference),
        "verdict": verdict.name,
        "layer": verdict.layer,
        "rule": verdict.rule,
        "tolerance": tolerance.to_json(),
        "layers": [_row(layer) for layer in (*measured.layers, *measured.gradients)],
        "attention": measured.attention,
        "notes": [*case.notes, *([MATH_ONLY] if asked.math_only else []), *measured.notes],
        "environment": dict(describe_environment(device)),
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": time.perf_counter() - start},
    }


@dataclass(frozen=True)
class _Measured:
    """All that a verdict rests on; the last of ``layers`` is the whole program."""

    layers: list[Layer]
    gradients: list[Layer]
    whole_exact: float | None
    repeats: Distance | None
    attention: list[AttentionCallJson]
    notes: list[str]
    dtype: torch.dtype


class _Profile:
    """The runs that a profile takes: of either side, in float64, perturbed, and layer by layer."""

    def __init__(self, case: Case, device: torch.device, asked: ProfileOptions) -> None:
        self._case, self._device = case, device
        self._asked, self._against, self._reference = asked, asked.against, asked.reference
        self._notes: list[str] = []

    def measured(self) -> _Measured:
        """Make all runs.

        Raises:
            CannotRun: the case raises in one of them.
        """
        attention, again = self._attention(), self._reference_run(self._reference)
        against = self._run(self._against)
        elsewhere = self._reference.is_compiled or self._reference.kind == "recording"
        given = self._run(self._reference) if elsewhere else None
        truth = self._eager(self._reference, exactly, double=True)
        rounding = self._eager(self._coarser(), lambda _: UlpNoise(_NOISE_SEED))
        known = Known(against.calls, against.exact, truth.calls, rounding.calls, None if given is None else given.calls)
        walk = Walk(self._case, self._device, self._reference, self._against, known)
        observation = walk.run(self._asked.look)
        repeats = distance(*([kept.values for kept in returned(run)] for run in (again, observation)))
        self._notes += [*against.notes, *(() if given is None else given.notes)]
        if self._against.is_compiled:
            self._compare_untapped(against)
        exact = against.exact.get((WHOLE, 0))
        whole_exact = None if exact is None else relative_step(exact.outputs, truth.calls[WHOLE, 0].outputs)
        gradients = gradient_layers(
            [layer.label for layer in walk.layers[:-1]],
            against.observation,
            observation if given is None else given.observation,
            truth=truth.observation,
            rounding=rounding.observation,
            exact=against.exact_observation,
        )
        return _Measured(
            walk.layers,
            gradients,
            whole_exact,
            repeats,
            attention,
            self._notes,
            _coarsest(observation, against.observation),
        )

    def _run(self, side: Side) -> SideRun:
        if side.kind == "recording":
            return replayed(self._case, self._device, side)
        return run_side(self._case, self._device, side, self._asked.look)

    def _eager(self, side: Side, numerics: Callable[[torch.dtype], Mode], *, double: bool = False) -> SideRun:
        """An eager run in the dtype of ``side``, otherwise as the reference runs."""
        program = side.built(self._case, self._device, double=double)
        return run_eagerly(self._case, program, self._reference, self._asked.look, numerics(program.dtype))

    def _coarser(self) -> Side:
        """The side whose rounding is the larger one, as far as that shows in their names."""
        return self._against if self._against.kind == "dtype" else self._reference

    def _attention(self) -> list[AttentionCallJson]:
        """The calls of attention that the program makes, under the settings of a plain run."""
        with record_attention_calls() as calls:
            self._reference_run(EAGER)
        for side in (self._against, self._reference):
            if side.kind == "sdpa":
                refuse_unless_usable(calls, side.argument)
        return calls

    def _reference_run(self, side: Side) -> Observation:
        program = self._reference.built(self._case, self._device)
        with side.attention(), side.numerics(program.dtype):
            return observe(self._case, program, program.model)

    def _compare_untapped(self, tapped: SideRun) -> None:
        """Say so if the taps changed what the compiled program returns."""
        plain = untapped(self._case, self._against.device(self._device), self._against, self._asked.look)
        if plain.failure is not None:
            self._notes.append(f"without taps the program raises as {self._against}: {plain.failure}")
            return
        moved = apart(returned(plain), tapped.calls[WHOLE, 0].outputs)
        if moved is None or moved.largest:
            by = "its form" if moved is None else f"{moved.largest:.1e}"
            self._notes.append(
                f"the taps at the layers changed what {self._against} makes of the program: its output moved by {by}"
            )


def _coarsest(*observations: Observation) -> torch.dtype:
    """The coarsest floating dtype among the outputs of the runs."""
    dtypes = {kept.dtype for observation in observations for kept in returned(observation)}
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _row(layer: Layer) -> LayerJson:
    apart = layer.apart
    row: LayerJson = {
        "name": layer.label,
        "kind": layer.kind,
        "size": None if apart is None else _figure(apart.size),
        "max_error": None if apart is None else _figure(apart.largest),
        "rms_error": _rms(apart),
        "cosine": None if apart is None else apart.cosine,
        "float64_error": _rms(layer.truth),
        "reference_float64_error": _rms(layer.reference_truth),
        "made": _rms(layer.made),
        "inherited": _rms(layer.inherited),
        "noise": _rms(layer.noise),
        "rounding": _rms(layer.rounding),
        "made_in_float64": None if layer.exact is None else _figure(layer.exact),
        "amplification": layer.amplification,
    }
    if apart is not None and not apart.finite:
        row["non_finite"] = "a number of either side is not finite"
    if layer.note:
        row["note"] = layer.note
    return row


def _rms(distance: Distance | None) -> float | None:
    return None if distance is None else _figure(distance.rms)


def _figure(value: float) -> float | None:
    return value if math.isfinite(value) else None
