"""``profile``: two ways to run a model, compared layer by layer, and the verdict on them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Literal, NamedTuple

import torch

from fuzzcompile.analyses.profile.layer_errors import (
    SUFFIX,
    Distance,
    Layer,
    Mode,
    Walk,
    apart,
    distance,
    gradient_layers,
    relative_step,
)
from fuzzcompile.analyses.profile.recordings import replay_recording
from fuzzcompile.analyses.profile.sides import (
    BLOCKS,
    EAGER,
    WHOLE,
    CannotRun,
    Look,
    Side,
    SideRun,
    exactly,
    parse_pair,
    refuse_failed,
    returned,
    run_eagerly,
    run_side,
    run_untapped,
)
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.profile_contract import LayerJson, ProfileJson
from fuzzcompile.model.thresholds import AMPLIFIED, SEMANTIC_STEP
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
from fuzzcompile.run.ranks import collect_answers, name_on_rank, on_all_ranks, tells_of_waiting
from fuzzcompile.run.runs import observe

# The verdict: which layer makes more error than rounding explains, if any does.

Name = Literal["equal", "expected_compounding", "jump", "unstable_reference"]
# The largest of many errors varies more from run to run than their RMS does; a single wrong element shows in it alone.
_LARGEST = 4.0
# A program that one ulp per operator carries this far, in units of its output's size, leaves nothing to compare.
_NO_DIGITS = 0.5
# An error at the output that no layer explains must be this many times as large, against rounding, as in any layer.
_UNEXPLAINED = 3.0
# Two runs of the reference that differ by this share of the error to be explained explain it.
_REPEATS = 0.1


@dataclass(frozen=True)
class ProfileVerdict:
    """The verdict of a profile."""

    name: Name  # the verdict
    layer: str | None  # the layer of a jump; None otherwise, and if the error is made outside of all layers
    rule: str  # the rule that decided, with its numbers, as one sentence
    place: float = math.inf  # of the layer that jumps, in the order in which they end


class Excess(NamedTuple):
    """Distance of an error from what rounding explains: ``ratio`` times the noise, where ``factor`` is allowed."""

    ratio: float
    factor: float
    what: str
    counts: bool  # false for an error up to the tolerance's floor, which is no jump

    @property
    def beyond(self) -> bool:
        """Return whether it is more than allowed."""
        return self.counts and self.ratio > self.factor


def decide(
    layers: Sequence[Layer],
    whole: Layer,
    gradients: Sequence[Layer],
    tolerance: Tolerance,
    *,
    whole_exact: float | None,
    repeats: Distance | None,
) -> ProfileVerdict:
    """Judge the layers, in the order in which they ended, and the gradients, in that of the backward pass.

    ``whole_exact`` is the relative change of the output in float64, if that is known, and ``repeats`` two runs of the
    reference against each other.
    """
    measured = [layer for layer in (*layers, whole, *gradients) if layer.apart is not None]
    if measured and all(layer.apart is not None and not layer.apart.largest for layer in measured):
        return ProfileVerdict("equal", None, f"all {len(measured)} results have the same values.")
    for place, layer in enumerate(layers):
        reason = jump_in(layer, tolerance)
        if reason is not None:
            return ProfileVerdict("jump", layer.label, f"{layer.label} {reason}", place)
    if (backward := _backward(gradients, tolerance)) is not None:
        return backward
    if (outside := _outside(layers, whole, tolerance, whole_exact)) is not None:
        return ProfileVerdict("jump", None, outside)
    compounding = ProfileVerdict("expected_compounding", None, _compounding(layers, whole, tolerance))
    return _unstable(whole, repeats) or compounding


def jump_in(layer: Layer, tolerance: Tolerance) -> str | None:
    """What the layer does that rounding does not explain, as the end of a sentence; None if there is nothing."""
    if layer.misshapen:
        return "returns results of another number or shape than the reference's."
    if layer.changes_meaning:
        explained = max(SEMANTIC_STEP, AMPLIFIED * layer.exact_noise)
        off = f"with all of it in float64 it is off by {layer.exact:.1e} of its size"
        return f"computes something else: {off}, where rounding explains {explained:.1e}."
    excess = measure_excess(layer, tolerance)
    if excess is None or not excess.beyond:
        return None
    if math.isinf(excess.ratio):
        return "makes a number that is not finite where the reference's own has a finite one."
    return (
        f"makes an error of its own ({excess.what}) that is {excess.ratio:.1f} times what rounding makes there; "
        f"{excess.factor:g} are allowed for {tolerance.pair}, {tolerance.dtype}."
    )


def measure_excess(layer: Layer, tolerance: Tolerance) -> Excess | None:
    """The larger excess of the layer's own error, in RMS and at its worst element; None if it was not measured."""
    if layer.made is None or layer.noise is None:
        return None
    floor = tolerance.floor(layer.made.size)
    noise = [distance for distance in (layer.noise, layer.own) if distance is not None]
    if math.isinf(layer.made.rms):
        excused = any(math.isinf(distance.rms) for distance in noise)
        return Excess(0.0 if excused else math.inf, tolerance.factor, "not finite", counts=True)
    made, factor = layer.made, tolerance.factor
    rms = _ratio(made.rms, max(distance.rms for distance in noise))
    largest = _ratio(made.largest, max(distance.largest for distance in noise))
    in_rms = Excess(rms, factor, f"RMS {made.rms:.1e}", made.rms > floor)
    beyond_floor = made.largest > tolerance.floor(made.size, made.value)
    at_worst = Excess(largest, _LARGEST * factor, f"{made.largest:.1e} at its worst element", beyond_floor)
    return at_worst if at_worst.beyond and not in_rms.beyond else in_rms


def _ratio(error: float, noise: float) -> float:
    if not error:
        return 0.0
    return error / noise if noise else math.inf


def _backward(gradients: Sequence[Layer], tolerance: Tolerance) -> ProfileVerdict | None:
    shares: list[float] = []
    for layer in gradients:
        share, name = _share(layer), layer.label.removesuffix(SUFFIX)
        if layer.exact is not None and layer.exact > SEMANTIC_STEP:
            rule = f"the gradients of {name} are off by {layer.exact:.1e} of their size with all of it in float64"
            return ProfileVerdict("jump", name, f"{rule}, where rounding explains {SEMANTIC_STEP:.1e}.")
        if share > tolerance.factor and share > _UNEXPLAINED * max(shares, default=0.0) and _counts(layer, tolerance):
            rule = f"the gradients of {name} are {share:.1f} times as far from the reference as rounding carries them"
            return ProfileVerdict("jump", name, f"{rule}; {tolerance.factor:g} are allowed.")
        shares.append(share)
    return None


def _outside(layers: Sequence[Layer], whole: Layer, tolerance: Tolerance, whole_exact: float | None) -> str | None:
    if whole.misshapen:
        return "the program returns results of another number or shape than the reference."
    inherited = max((layer.exact for layer in layers if layer.exact is not None), default=0.0)
    # Rounding at the output against rounding where it is made; infinite if no digits are left there.
    made = max((layer.noise.relative for layer in layers if layer.noise is not None), default=0.0)
    gain = 1.0
    if whole.rounding is not None and made:
        gain = max(1.0, whole.rounding.relative / made) if whole.rounding.relative < _NO_DIGITS else math.inf
    explained = max(SEMANTIC_STEP, AMPLIFIED * inherited * gain) if inherited else SEMANTIC_STEP
    if whole_exact is not None and whole_exact > explained:
        return (
            f"the program's output is off by {whole_exact:.1e} of its size with all of it in float64, "
            f"and no layer makes more than {inherited:.1e}: the error is made outside of the layers looked at."
        )
    share, shares = _share(whole), [_share(layer) for layer in layers]
    largest = max(shares, default=0.0)
    if share > tolerance.factor and share > _UNEXPLAINED * largest and _counts(whole, tolerance):
        return (
            f"the program's output is {share:.1f} times as far from the reference as rounding carries it, "
            f"and no layer more than {largest:.1f} times: the error is made outside of the layers looked at."
        )
    return None


def _counts(whole: Layer, tolerance: Tolerance) -> bool:
    distance = whole.apart
    return distance is not None and distance.rms > tolerance.floor(distance.size)


def _share(layer: Layer) -> float:
    if layer.apart is None or layer.rounding is None or not layer.apart.rms:
        return 0.0
    explained = max(d.rms for d in (layer.rounding, layer.reference_truth) if d is not None)
    if math.isinf(explained):
        return 0.0
    return layer.apart.rms / explained if explained else math.inf


def _unstable(whole: Layer, repeats: Distance | None) -> ProfileVerdict | None:
    error = whole.apart.rms if whole.apart is not None else 0.0
    if repeats is not None and repeats.rms > _REPEATS * error:
        rule = f"two runs of the reference differ by {repeats.rms:.1e} (RMS), and both sides by {error:.1e}."
        return ProfileVerdict("unstable_reference", None, rule)
    rounding = whole.rounding
    if rounding is not None and not rounding.relative < _NO_DIGITS:
        rule = (
            f"one ulp in every operator carries the reference's output by {rounding.relative:.1e} of its size "
            f"({_NO_DIGITS:g} leaves no digit to compare), and both sides differ by {error:.1e}."
        )
        return ProfileVerdict("unstable_reference", None, rule)
    return None


def _compounding(layers: Sequence[Layer], whole: Layer, tolerance: Tolerance) -> str:
    judged = [(excess.ratio, layer) for layer in layers if (excess := measure_excess(layer, tolerance)) is not None]
    error = whole.apart.relative if whole.apart is not None else 0.0
    text = f"the output is off by {error:.1e} of its size"
    if whole.rounding is not None:
        text += f" (one ulp in every operator: {whole.rounding.relative:.1e})"
    if not judged:
        return f"{text}; no layer could be run alone, so that only the output was judged."
    ratio, layer = max(judged, key=lambda pair: pair[0])
    factors = [factor for _, each in judged if (factor := each.amplification)]
    growth = f"; each passes on {geometric_mean(factors or [1]):.2f} times the error that it gets, on average"
    return (
        f"{text}, and no layer makes more error than rounding explains there: {layer.label} makes the most, "
        f"{ratio:.1f} times, where {tolerance.factor:g} are allowed{growth if factors else ''}."
    )


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
    """Compare two ways to run the case, layer by layer, on all ranks that run it.

    CannotRun if the case raises in one of them, EnvironmentUnfit without such a device or kernel, RankLost without
    another rank, UsageError where the tolerances or the recording cannot be used.
    """
    asked.check()
    start = time.perf_counter()
    with on_all_ranks(f"{__name__}:{profile_rank.__name__}", case, asked):
        own = profile_rank(case, device, asked)
    compared = _merge_ranks([own, *collect_answers()])
    return {
        "schema": SCHEMA,
        "case": case.name,
        "torch": str(torch.__version__),
        "device": str(device),
        "against": str(asked.against),
        "reference": str(asked.reference),
        **compared,
        "environment": dict(describe_environment(device)),
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": time.perf_counter() - start},
    }


def profile_rank(
    case: Case, device: torch.device, asked: ProfileOptions
) -> tuple[ProfileVerdict, ProfileJson] | CannotRun:
    """The verdict on what this process sees, and what stands behind it, or why there is none.

    Layers are run again at the same places on all ranks, since they may wait for one another.
    """
    with force_math_kernel() if asked.math_only else contextlib.nullcontext():
        try:
            return _Runs(case, device, asked).compare()
        except CannotRun as error:  # the first rank says what became of all
            return error


_SEVERITY: tuple[Name, ...] = ("equal", "expected_compounding", "unstable_reference", "jump")


def _merge_ranks(made: Sequence[tuple[ProfileVerdict, ProfileJson] | CannotRun]) -> ProfileJson:
    """The profile of all ranks: the worst verdict, of jumps that of the first layer, and the rows of all.

    Raises:
        CannotRun: the program raises on one of them.
    """
    failed = [
        (tells_of_waiting(str(error)), rank, error) for rank, error in enumerate(made) if isinstance(error, CannotRun)
    ]
    if failed:  # a rank that waits for another is not why
        _, rank, error = min(failed, key=lambda each: each[:2])
        raise CannotRun(f"On rank {rank}, {error}" if rank else str(error))
    ranks = [each for each in made if not isinstance(each, CannotRun)]

    def read_badness(rank: int) -> tuple[int, float]:
        verdict, _ = ranks[rank]
        return _SEVERITY.index(verdict.name), -verdict.place

    worst = max(range(len(ranks)), key=read_badness)
    (verdict, compared), (_, first) = ranks[worst], ranks[0]
    layers, notes = list(first["layers"]), list(first["notes"])
    for rank, (_, other) in enumerate(ranks[1:], 1):
        layers += [{**row, "name": name_on_rank(row["name"], rank)} for row in other["layers"]]
        notes += [f"rank {rank}: {note}" for note in other["notes"] if note not in first["notes"]]
    return {
        **first,
        "verdict": verdict.name,
        "layer": name_on_rank(verdict.layer, worst) if worst and verdict.layer is not None else verdict.layer,
        "rule": f"on rank {worst}, {verdict.rule}" if worst else verdict.rule,
        "tolerance": compared["tolerance"],
        "layers": layers,
        "notes": notes,
    }


@dataclass(frozen=True)
class _Runs:
    case: Case
    device: torch.device
    asked: ProfileOptions

    def compare(self) -> tuple[ProfileVerdict, ProfileJson]:
        """The verdict, and the layers, the whole program and gradients; attention, and notes."""
        asked, whole = self.asked, (WHOLE, 0)
        tolerances = Tolerances.load(asked.tolerances)  # what cannot be read is said before anything runs
        with record_attention_calls() as attention:  # under the settings of a plain run
            self.run_reference(EAGER)
        for side in (asked.against, asked.reference):
            if side.kind == "sdpa":
                refuse_unless_usable(attention, side.argument)
        again, against = self.run_reference(asked.reference), self.run(asked.against)
        elsewhere = asked.reference.is_compiled or asked.reference.kind == "recording"
        given = self.run(asked.reference) if elsewhere else None
        truth = self.run_eagerly(asked.reference, exactly, double=True)
        # The rounding of the coarser side, as far as that shows in their names.
        coarser = asked.against if asked.against.kind == "dtype" else asked.reference
        rounding = self.run_eagerly(coarser, lambda _: UlpNoise(_NOISE_SEED))
        known = None if given is None else given.calls
        walk = Walk(self.case, self.device, asked.reference, asked.against, against, truth.calls, rounding.calls, known)
        observation = walk.run(asked.look)
        notes = [*self.case.notes, *([MATH_ONLY] if asked.math_only else []), *against.notes]
        notes += () if given is None else given.notes
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
        pair = parse_pair(asked.against, asked.reference, self.device)
        tolerance = tolerances.for_pair(pair, dtype)
        exact_outputs = None if exact is None else exact.calls[whole].outputs
        verdict = decide(
            layers,
            program,
            gradients,
            tolerance,
            whole_exact=relative_step(exact_outputs, truth.calls[whole].outputs),
            repeats=distance(*([kept.values for kept in returned(run)] for run in (again, observation))),
        )
        return verdict, {
            "tolerance": tolerance.to_json(),
            "layers": [_row(layer) for layer in (*walk.layers, *gradients)],
            "attention": attention,
            "notes": notes,
        }

    def run(self, side: Side) -> SideRun:
        if side.kind == "recording":
            return replay_recording(self.case, self.device, side)
        return run_side(self.case, self.device, side, self.asked.look)

    def run_eagerly(self, side: Side, numerics: Callable[[torch.dtype], Mode], *, double: bool = False) -> SideRun:
        """An eager run in the dtype of ``side``, otherwise as the reference runs."""
        program = side.built(self.case, self.device, double=double)
        return run_eagerly(self.case, program, self.asked.reference, self.asked.look, numerics(program.dtype))

    def run_reference(self, side: Side) -> Observation:
        program = self.asked.reference.built(self.case, self.device)
        with side.attention(), side.numerics(program.dtype):
            observation = observe(self.case, program, program.model)
        refuse_failed(self.case, side, observation)
        return observation

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
