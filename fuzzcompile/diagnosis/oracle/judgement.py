"""From observations to a verdict: pure functions on runs that the caller makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.diagnosis.oracle.comparison import DtypeFactor, compare
from fuzzcompile.model.evidence import EagerRefusal
from fuzzcompile.model.thresholds import VANISHING
from fuzzcompile.model.verdicts import Comparison, Verdict
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Observation, Value


@dataclass(frozen=True)
class Observations:
    """The runs of one case that a verdict rests on; ``again`` is a second eager run.

    ``factor_of`` stands for ``ROUNDING_FACTOR`` where another way to run has eager's place.
    """

    eager: Observation
    again: Observation
    reference: Observation
    noisy: Sequence[Observation]
    compiled: Observation
    factor_of: DtypeFactor | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict on one set of observations, before any further experiment.

    ``casts_dropped`` says that the values are right only if the program's own low-precision casts are not made.
    """

    verdict: Verdict
    comparisons: tuple[Comparison, ...] = ()
    detail: str = ""
    confidence: str = "high"
    casts_dropped: bool = False

    @property
    def suspicious(self) -> tuple[Comparison, ...]:
        """Values that are farther from the reference than rounding explains.

        Whether their meaning changed or precision was lost takes a float64 replay or a compile in float64.
        """
        return tuple(comparison for comparison in self.comparisons if comparison.finding == "far")

    @property
    def worst(self) -> Comparison | None:
        """The comparison that decides; None if nothing was compared."""
        if not self.comparisons:
            return None
        return max(self.comparisons, key=lambda c: (_SEVERITY[c.finding], c.relative_error))


_SEVERITY = {
    "same": 0, "close": 1, "wild": 2, "stride": 3, "dtype": 4, "alias": 5, "shape": 6, "far": 7, "missing": 8,
    "integer": 9, "nonfinite": 10,
}  # fmt: skip


def judge(runs: Observations) -> Judgement:
    """Give the first verdict on a case.

    Errors take precedence, then values (NaN and infinities, integers, floats), then aliases, then metadata.
    """
    if runs.eager.failure or runs.compiled.failure:
        return _judge_failures(runs.eager, runs.compiled)
    if runs.eager.structure != runs.compiled.structure:
        return Judgement(
            Verdict.METADATA,
            detail=f"eager returns {runs.eager.structure}, compiled {runs.compiled.structure}",
        )
    comparisons = tuple(_compare_all(runs))
    confidence = "high" if runs.reference.failure is None and have_same_bits(runs.eager, runs.again) else "low"
    return Judgement(_choose_verdict(comparisons, runs), comparisons, confidence=confidence)


def have_same_bits(first: Observation, second: Observation) -> bool:
    """Return whether two runs show the same values bit for bit."""
    if bool(first.failure) != bool(second.failure) or len(first.values) != len(second.values):
        return False
    return all(
        compare(before, after, None, ()).finding == "same" or not before.is_tensor
        for before, after in zip(first.values, second.values, strict=True)
    )


def choose_wrong_values_verdict(judgement: Judgement) -> Verdict:
    """The verdict on values known to be wrong: ``wrong_gradient`` if nothing but gradients differs."""
    differing = [c for c in judgement.comparisons if c.finding != "same"]
    gradients = differing and all(c.kind == "gradient" for c in differing)
    return Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE


def largest_error(judgement: Judgement) -> float | None:
    """The largest distance of a compiled value from the reference, for tables of ablations."""
    return max((c.max_abs_error_compiled for c in judgement.comparisons), default=None)


def _judge_failures(eager: Observation, compiled: Observation) -> Judgement:
    if eager.failure and compiled.failure:
        alike = eager.failure.type_name == compiled.failure.type_name
        detail = f"eager raises {eager.failure}; compiled {'too' if alike else f'raises {compiled.failure}'}"
        return Judgement(Verdict.INVALID, detail=detail)
    if eager.failure:
        return Judgement(Verdict.ACCEPTS_INVALID, detail=str(EagerRefusal(str(eager.failure))))
    failure = compiled.failure
    assert failure is not None
    verdict = Verdict.COMPILE_ERROR if failure.phase == "compile" else Verdict.RUNTIME_ERROR
    return Judgement(verdict, detail=str(failure))


def _compare_all(runs: Observations) -> list[Comparison]:
    compiled, exact = runs.compiled.index_by_name(), runs.reference.index_by_name()
    # If eager is not deterministic, its own variation is noise like any other.
    noisy = [run.index_by_name() for run in (*runs.noisy, runs.again) if run.failure is None]
    gradients = (_measure_scale(value) for value in exact.values() if value.kind == "gradient")
    vanishing = VANISHING * max(gradients, default=0.0)
    comparisons = []
    for value in runs.eager.values:
        reference = exact.get(value.name)
        zero = value.kind == "gradient" and _measure_scale(reference) < vanishing
        comparisons.append(
            compare(
                value,
                compiled.get(value.name),
                reference,
                [run[value.name] for run in noisy if value.name in run],
                smallest_scale=vanishing / VANISHING if zero else 0.0,
                factor_of=runs.factor_of,
            )
        )
    known = {value.name for value in runs.eager.values}
    comparisons += [
        Comparison(value.name, value.kind, "missing", detail="only compiled has it")
        for value in runs.compiled.values
        if value.name not in known
    ]
    return comparisons


def _measure_scale(value: Value | None) -> float:
    return metrics.rms(metrics.widen(value.value)) if value is not None and value.is_tensor else 0.0


def _choose_verdict(comparisons: Sequence[Comparison], runs: Observations) -> Verdict:
    findings = {comparison.finding for comparison in comparisons}
    if findings <= {"same"}:
        return Verdict.EQUAL
    if "nonfinite" in findings:
        return Verdict.NONFINITE
    # Farther than rounding explains, and beyond PyTorch's default tolerances as well.
    far = [c for c in comparisons if c.finding == "far" and not c.within_scaled_tolerance]
    wrong = {c.kind for c in comparisons if c.finding == "integer"} | {c.kind for c in far}
    if "output" in wrong or "mutation" in wrong:
        return Verdict.MISCOMPILE
    if wrong:
        return Verdict.WRONG_GRADIENT
    if "alias" in findings or any(c.finding == "missing" and c.kind == "mutation" for c in comparisons):
        return Verdict.ALIASING
    if "missing" in findings or findings & {"dtype", "shape", "stride"}:
        return Verdict.METADATA
    return Verdict.UNSTABLE if "wild" in findings else Verdict.ROUNDING


# Observations with values of another run in place of their own, so that the rest can be judged.


def reshape_like_eager(eager: Observation, values: Observation) -> Observation:
    """The values of ``values`` with the dtypes, devices, strides and aliases that eager gives them."""
    named = values.index_by_name()
    return replace(
        eager, values=tuple(_in_form(value, named[value.name]) for value in eager.values if value.name in named)
    )


def _in_form(form: Value, value: Value) -> Value:
    if isinstance(form.value, torch.Tensor) and isinstance(value.value, torch.Tensor):
        return replace(form, value=value.value.to(form.value.device, form.value.dtype))
    return replace(form, value=value.value)


def with_eager_strides(eager: Observation, compiled: Observation) -> Observation:
    """The compiled run with eager's strides, so that nothing but the rest can differ."""
    own = eager.index_by_name()
    return replace(
        compiled,
        values=tuple(
            replace(value, stride=own[value.name].stride) if _alike(value, own.get(value.name)) else value
            for value in compiled.values
        ),
    )


def with_eager_values(eager: Observation, compiled: Observation, names: Sequence[str]) -> Observation:
    """The compiled run with eager's values under these names, so that the rest can be judged value by value."""
    own = eager.index_by_name()
    return replace(
        compiled,
        values=tuple(
            _in_form(value, own[value.name]) if value.name in names and _alike(value, own.get(value.name)) else value
            for value in compiled.values
        ),
    )


def _alike(first: Value, second: Value | None) -> bool:
    if second is None or first.is_tensor != second.is_tensor:
        return False
    return not first.is_tensor or first.value.shape == second.value.shape
