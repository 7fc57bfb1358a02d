"""The verdict of a profile: which layer makes more error than rounding explains, if any does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Literal, NamedTuple

from fuzzcompile.analyses.profile.layer_errors import SUFFIX, Distance, Layer
from fuzzcompile.model.thresholds import AMPLIFIED, SEMANTIC_STEP
from fuzzcompile.model.tolerances import Tolerance

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


class Excess(NamedTuple):
    """Distance of an error from what rounding explains: ``ratio`` times the noise, where ``factor`` is allowed.

    Whatever the ratio, an error up to the tolerance's floor is no jump: ``counts`` is then false.
    """

    ratio: float
    factor: float
    what: str
    counts: bool

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
    for layer in layers:
        reason = jump_in(layer, tolerance)
        if reason is not None:
            return ProfileVerdict("jump", layer.label, f"{layer.label} {reason}")
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
    """The first layer of the backward pass whose gradients are off; what lies behind it inherits that."""
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
