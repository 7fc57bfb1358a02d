"""``profile``: two ways to run a model, compared layer by layer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.case import Case
from fuzzcompile.contract import AttentionCallJson, LayerJson, ProfileJson
from fuzzcompile.execution.attention_backends import math_only
from fuzzcompile.execution.attention_calls import attention_calls
from fuzzcompile.execution.building import build
from fuzzcompile.execution.environment import describe
from fuzzcompile.execution.noise import UlpNoise
from fuzzcompile.execution.observation import Observation
from fuzzcompile.execution.runs import observe
from fuzzcompile.oracle import change
from fuzzcompile.profiling.distance import Distance, distance
from fuzzcompile.profiling.kept import KeptCall
from fuzzcompile.profiling.local import Mode
from fuzzcompile.profiling.measuring import Layer, apart
from fuzzcompile.profiling.runs import WHOLE, SideRun, returned, run_eagerly, run_side, untapped
from fuzzcompile.profiling.sides import EAGER, Side, exactly, pair_of
from fuzzcompile.profiling.verdict import decide
from fuzzcompile.profiling.walk import Known, Walk
from fuzzcompile.tolerances import Tolerances

_NOISE_SEED = 3
SCHEMA = 1


@dataclass(frozen=True)
class Asked:
    """What is to be profiled.

    Attributes:
        against: the side that is measured.
        reference: what it is compared with; no recording.
        depth: which modules are layers; None chooses blocks.
        tolerances: a TOML file that overrides the table of tolerances.
        math_only: attention takes its math kernel on both sides, and TF32 is off.
    """

    against: Side
    reference: Side = EAGER
    depth: int | None = None
    tolerances: Path | None = None
    math_only: bool = False


def profile(case: Case, device: torch.device, asked: Asked) -> ProfileJson:
    """Compare two ways to run the case, layer by layer.

    Raises:
        CannotRun: the case raises in one of them.
        EnvironmentUnfit: there is no such device or kernel here.
        UsageError: the tolerances cannot be used.
    """
    start = time.perf_counter()
    table = Tolerances.load(asked.tolerances)
    with math_only() if asked.math_only else contextlib.nullcontext():
        measured = _Profile(case, device, asked).measured()
    dtype = str(measured.dtype).removeprefix("torch.")
    tolerance = table.for_pair(pair_of(asked.against, asked.reference, device), dtype)
    *layers, whole = measured.layers
    verdict = decide(layers, whole, tolerance, whole_exact=measured.whole_exact, repeats=measured.repeats)
    return {
        "schema": SCHEMA,
        "case": case.name,
        "torch": torch.__version__,
        "device": str(device),
        "against": str(asked.against),
        "reference": str(asked.reference),
        "verdict": verdict.name,
        "layer": verdict.layer,
        "rule": verdict.rule,
        "tolerance": tolerance.to_json(),
        "layers": [_row(layer) for layer in measured.layers],
        "attention": measured.attention,
        "notes": [*case.notes, *measured.notes],
        "environment": dict(describe(device)),
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": time.perf_counter() - start},
    }


@dataclass(frozen=True)
class _Measured:
    """All that a verdict rests on; the last of ``layers`` is the whole program."""

    layers: list[Layer]
    whole_exact: float | None
    repeats: Distance | None
    attention: list[AttentionCallJson]
    notes: list[str]
    dtype: torch.dtype


class _Profile:
    """The runs that a profile takes: of either side, in float64, perturbed, and layer by layer."""

    def __init__(self, case: Case, device: torch.device, asked: Asked) -> None:
        self._case, self._device = case, device
        self._asked, self._against, self._reference = asked, asked.against, asked.reference
        self._notes: list[str] = []

    def measured(self) -> _Measured:
        """Make all runs.

        Raises:
            CannotRun: the case raises in one of them.
        """
        attention, repeats = self._plain_runs()
        against = self._run(self._against)
        given = self._run(self._reference).calls if self._reference.is_compiled else None
        truth, rounding = self._eager(exactly), self._eager(lambda _: UlpNoise(_NOISE_SEED))
        known = Known(against.calls, against.exact, truth.calls, rounding.calls, given)
        walk = Walk(self._case, self._device, self._reference, self._against, known)
        observation = walk.run(self._asked.depth)
        self._notes += against.notes
        if self._against.is_compiled:
            self._compare_untapped(against)
        whole_exact = _step(against.exact.get((WHOLE, 0)), truth.calls[WHOLE, 0])
        return _Measured(walk.layers, whole_exact, repeats, attention, self._notes, _widest(observation))

    def _run(self, side: Side) -> SideRun:
        return run_side(self._case, self._device, side, self._asked.depth)

    def _eager(self, numerics: Callable[[torch.dtype], Mode]) -> SideRun:
        """An eager run in the dtype and on the device of the measured side."""
        side = self._reference if self._against.kind == "recording" else self._against
        case = side.adapted(self._case)
        program = build(case, side.device(self._device))
        return run_eagerly(case, program, side, self._asked.depth, numerics(program.dtype))

    def _plain_runs(self) -> tuple[list[AttentionCallJson], Distance | None]:
        """Two eager runs of the reference: the calls of attention that it makes, and how far apart both are."""
        case = self._reference.adapted(self._case)
        runs, calls = [], list[AttentionCallJson]()
        for watch in (attention_calls(), contextlib.nullcontext(calls)):
            program = build(case, self._reference.device(self._device))
            with self._reference.attention(), watch as seen:
                runs.append(observe(case, program, program.model))
            calls = calls or seen
        first, second = ([kept.values for kept in returned(run)] for run in runs)
        return calls, distance(first, second)

    def _compare_untapped(self, tapped: SideRun) -> None:
        """Say so if the taps changed what the compiled program returns."""
        plain = untapped(self._case, self._against.device(self._device), self._against)
        if plain.failure is not None:
            self._notes.append(f"without taps the program raises as {self._against}: {plain.failure}")
            return
        moved = apart(returned(plain), [kept.values for kept in tapped.calls[WHOLE, 0].outputs])
        if moved is None or moved.largest:
            by = "its form" if moved is None else f"{moved.largest:.1e}"
            self._notes.append(
                f"the taps at the layers changed what {self._against} makes of the program: its output moved by {by}"
            )


def _step(exact: KeptCall | None, truth: KeptCall) -> float | None:
    if exact is None:
        return None
    return change.largest_change([kept.values for kept in exact.outputs], [kept.values for kept in truth.outputs])


def _widest(observation: Observation) -> torch.dtype:
    """The coarsest floating dtype among the outputs."""
    floating = [kept.dtype for kept in returned(observation) if kept.dtype.is_floating_point]
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
