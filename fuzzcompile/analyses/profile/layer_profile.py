"""``profile``: two ways to run a model, compared layer by layer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fuzzcompile.analyses.profile.layer_errors import (
    Distance,
    Layer,
    Mode,
    Walk,
    apart,
    distance,
    gradient_layers,
    relative_step,
)
from fuzzcompile.analyses.profile.layer_verdict import ProfileVerdict, decide
from fuzzcompile.analyses.profile.recordings import replay_recording
from fuzzcompile.analyses.profile.sides import (
    BLOCKS,
    EAGER,
    WHOLE,
    Look,
    Side,
    SideRun,
    exactly,
    parse_pair,
    returned,
    run_eagerly,
    run_side,
    run_untapped,
)
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.profile_contract import AttentionCallJson, LayerJson, ProfileJson
from fuzzcompile.model.tolerances import Tolerance, Tolerances
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
    """Options of a profile."""

    against: Side  # the side that is measured
    reference: Side = EAGER  # what it is compared with
    look: Look = BLOCKS  # which modules are layers, how much of them is kept, and what is refused in compiles
    tolerances: Path | None = None  # a TOML file that overrides the table of tolerances
    math_only: bool = False  # attention takes its math kernel on both sides, and TF32 is off

    def check(self) -> None:
        """Refuse operators of a compiled run, and tolerances that cannot be used, by a UsageError."""
        Tolerances.load(self.tolerances)
        for side in (self.against, self.reference):
            if self.look.operators and side.is_compiled:
                raise UsageError(
                    f"{side} fuses operators, so that none of them can be looked at alone; leave out --ops, or raise "
                    "--depth: the layer of a jump is triaged down to its rewrite."
                )


def profile(case: Case, device: torch.device, asked: ProfileOptions) -> ProfileJson:
    """Compare two ways to run the case, layer by layer.

    CannotRun if the case raises in one of them, EnvironmentUnfit without such a device or kernel, UsageError where the
    tolerances or the recording cannot be used.
    """
    asked.check()
    start = time.perf_counter()
    table = Tolerances.load(asked.tolerances)
    with force_math_kernel() if asked.math_only else contextlib.nullcontext():
        seen = _Runs(case, device, asked).compare(table)
    return {
        "schema": SCHEMA,
        "case": case.name,
        "torch": str(torch.__version__),
        "device": str(device),
        "against": str(asked.against),
        "reference": str(asked.reference),
        "verdict": seen.verdict.name,
        "layer": seen.verdict.layer,
        "rule": seen.verdict.rule,
        "tolerance": seen.tolerance.to_json(),
        "layers": [_row(layer) for layer in seen.layers],
        "attention": seen.attention,
        "notes": [*case.notes, *([MATH_ONLY] if asked.math_only else []), *seen.notes],
        "environment": dict(describe_environment(device)),
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": time.perf_counter() - start},
    }


class _Compared(NamedTuple):
    layers: list[Layer]  # then the whole program, then gradients
    verdict: ProfileVerdict
    tolerance: Tolerance
    attention: list[AttentionCallJson]
    notes: list[str]


@dataclass(frozen=True)
class _Runs:
    case: Case
    device: torch.device
    asked: ProfileOptions

    def compare(self, table: Tolerances) -> _Compared:
        asked, whole = self.asked, (WHOLE, 0)
        attention, again = self.list_attention(), self.run_reference(asked.reference)
        against = self.run(asked.against)
        elsewhere = asked.reference.is_compiled or asked.reference.kind == "recording"
        given = self.run(asked.reference) if elsewhere else None
        truth = self.run_eagerly(asked.reference, exactly, double=True)
        # The rounding of the coarser side, as far as that shows in their names.
        coarser = asked.against if asked.against.kind == "dtype" else asked.reference
        rounding = self.run_eagerly(coarser, lambda _: UlpNoise(_NOISE_SEED))
        known = None if given is None else given.calls
        walk = Walk(self.case, self.device, asked.reference, asked.against, against, truth.calls, rounding.calls, known)
        observation = walk.run(asked.look)
        notes = [*against.notes, *(() if given is None else given.notes)]
        notes += self.compare_untapped(against) if asked.against.is_compiled else []
        exact, (*layers, program) = against.exact, walk.layers
        gradients = gradient_layers(
            [layer.label for layer in layers],
            against.observation,
            observation if given is None else given.observation,
            truth=truth.observation,
            rounding=rounding.observation,
            exact=None if exact is None else exact.observation,
        )
        results = [kept.dtype for run in (observation, against.observation) for kept in returned(run)]
        floating = sorted({dtype for dtype in results if dtype.is_floating_point}, key=lambda x: torch.finfo(x).eps)
        dtype = str([torch.float32, *floating][-1]).removeprefix("torch.")
        tolerance = table.for_pair(parse_pair(asked.against, asked.reference, self.device), dtype)
        verdict = decide(
            layers,
            program,
            gradients,
            tolerance,
            whole_exact=None
            if exact is None
            else relative_step(exact.calls[whole].outputs, truth.calls[whole].outputs),
            repeats=distance(*([kept.values for kept in returned(run)] for run in (again, observation))),
        )
        return _Compared([*walk.layers, *gradients], verdict, tolerance, attention, notes)

    def run(self, side: Side) -> SideRun:
        if side.kind == "recording":
            return replay_recording(self.case, self.device, side)
        return run_side(self.case, self.device, side, self.asked.look)

    def run_eagerly(self, side: Side, numerics: Callable[[torch.dtype], Mode], *, double: bool = False) -> SideRun:
        """An eager run in the dtype of ``side``, otherwise as the reference runs."""
        program = side.built(self.case, self.device, double=double)
        return run_eagerly(self.case, program, self.asked.reference, self.asked.look, numerics(program.dtype))

    def list_attention(self) -> list[AttentionCallJson]:
        """The calls of attention that the program makes, under the settings of a plain run."""
        with record_attention_calls() as calls:
            self.run_reference(EAGER)
        for side in (self.asked.against, self.asked.reference):
            if side.kind == "sdpa":
                refuse_unless_usable(calls, side.argument)
        return calls

    def run_reference(self, side: Side) -> Observation:
        program = self.asked.reference.built(self.case, self.device)
        with side.attention(), side.numerics(program.dtype):
            return observe(self.case, program, program.model)

    def compare_untapped(self, tapped: SideRun) -> Iterator[str]:
        """Say so if the taps changed what the compiled program returns."""
        against = self.asked.against
        plain = run_untapped(self.case, against.device(self.device), against, self.asked.look)
        if plain.failure is not None:
            yield f"without taps the program raises as {against}: {plain.failure}"
            return
        moved = apart(returned(plain), tapped.calls[WHOLE, 0].outputs)
        if moved is None or moved.largest:
            by = "its form" if moved is None else f"{moved.largest:.1e}"
            yield f"the taps at the layers changed what {against} makes of the program: its output moved by {by}"


def _row(layer: Layer) -> LayerJson:
    apart = layer.apart
    row: LayerJson = {
        "name": layer.label,
        "kind": layer.kind,
        "size": None if apart is None else _finite(apart.size),
        "max_error": None if apart is None else _finite(apart.largest),
        "rms_error": _rms(apart),
        "cosine": None if apart is None else apart.cosine,
        "float64_error": _rms(layer.truth),
        "reference_float64_error": _rms(layer.reference_truth),
        "made": _rms(layer.made),
        "inherited": _rms(layer.inherited),
        "noise": _rms(layer.noise),
        "rounding": _rms(layer.rounding),
        "made_in_float64": _finite(layer.exact),
        "amplification": layer.amplification,
    }
    if apart is not None and not apart.finite:
        row["non_finite"] = "a number of either side is not finite"
    if layer.note:
        row["note"] = layer.note
    return row


def _rms(distance: Distance | None) -> float | None:
    return None if distance is None else _finite(distance.rms)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
