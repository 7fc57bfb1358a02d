"""Judge one sampled step: its compiled values against those of the runs beside it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzzcompile.analyses.watch.step_records import StepReport
from fuzzcompile.analyses.watch.step_values import StepValues
from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.model.verdicts import Comparison, Verdict
from fuzzcompile.run.observation import Observation

OWN_RANDOM = (
    "the compiled step draws other random numbers than eager: its values are not compared; compile with "
    "torch._inductor.config.fallback_random"
)


# An error that is that many times as large as those of eager and of the perturbed runs is wrong as it stands. Below,
# values that the judge takes for wrong are suspicious: the state of a diverging program can amplify rounding in ways
# that a few perturbed runs do not show, and triage of the step's graphs decides.
GROSS_RATIO = 20.0


@dataclass(frozen=True)
class StepRuns:
    """The values of one step: as the script computed them, and of each run beside it that ended well.

    ``noisy`` are perturbed runs, ``exact`` is the float64 run without the program's own low-precision casts; ``again``
    is a second eager run. Those that are None were not made.
    """

    compiled: StepValues
    eager: StepValues
    reference: StepValues | None = None
    noisy: Sequence[StepValues] = ()
    exact: StepValues | None = None
    again: StepValues | None = None

    @property
    def draws_alike(self) -> bool:
        """Return whether the script's step drew the random numbers that eager draws."""
        return self.compiled.failure is not None or self.eager.draws_alike(self.compiled)


def judged(runs: StepRuns) -> Judgement:
    """The judge's answer on a step."""
    first = _against(runs, runs.reference)
    if runs.exact is None or not first.suspicious:
        return first
    # Right only without the program's own low-precision casts: computed more exactly than it asks for.
    without = _against(runs, runs.exact)
    return first if without.suspicious or without.verdict.is_bug else without


def _against(runs: StepRuns, reference: StepValues | None) -> Judgement:
    names = set(runs.compiled.values) & set(runs.eager.values)

    def seen(run: StepValues | None) -> Observation:
        """The values of a run that can be compared with eager's, or else those of eager."""
        usable = run is not None and run.failure is None and runs.eager.draws_alike(run)
        return (run if run is not None and usable else runs.eager).observation(names)

    again = seen(None) if runs.again is None else runs.again.observation(names)
    noisy = [run.observation(names) for run in runs.noisy if run.failure is None and runs.eager.draws_alike(run)]
    return judge(Observations(seen(None), again, seen(reference), noisy, runs.compiled.observation(names)))


def reported(step: int, runs: StepRuns, judgement: Judgement) -> StepReport:
    """The report on a judged step."""
    groups = runs.compiled.groups()
    comparisons = [comparison for comparison in judgement.comparisons if comparison.name in groups]
    worst, verdict = judgement.worst, judgement.verdict
    # Parameters that are wrong because their gradients are do not make it a ``miscompile``.
    wrong = {groups[c.name] for c in comparisons if c.finding in ("far", "integer") and not c.within_scaled_tolerance}
    if verdict is Verdict.MISCOMPILE and "gradients" in wrong and wrong <= {"gradients", "gradient_norm", "parameters"}:
        verdict = Verdict.WRONG_GRADIENT
    ran = {"compiled": runs.compiled, "eager": runs.eager, "float64": runs.reference}
    losses = {run: values.values["loss"][1] for run, values in ran.items() if values and "loss" in values.values}
    numbers = {run: float(loss) for run, loss in losses.items() if hasattr(loss, "item")}  # type: ignore[arg-type]
    return StepReport(
        step,
        str(verdict),
        unexplained=judgement.verdict.is_bug and any(map(_is_gross, comparisons)),
        detail=judgement.detail or _detail(judgement, comparisons),
        made=_largest(comparisons, groups, "max_error_compiled"),
        eager=_largest(comparisons, groups, "max_error_eager"),
        floor=_largest(comparisons, groups, "noise_floor"),
        worst=None if worst is None or worst.finding == "same" else _shown(worst),
        loss={run: loss for run, loss in numbers.items() if math.isfinite(loss)},
        unseen=tuple(_unseen(runs)),
        seconds=sum(run.seconds for run in (runs.eager, runs.reference, *runs.noisy) if run is not None),
    )


def _is_gross(comparison: Comparison) -> bool:
    if comparison.finding != "far":
        return comparison.finding not in ("same", "close", "wild")
    usual = max(comparison.max_error_eager, comparison.noise_floor)
    return not comparison.within_scaled_tolerance and comparison.max_error_compiled > GROSS_RATIO * usual


def wrong_by_value(report: Mapping[str, object]) -> bool:
    """Return whether triage found what can make a step wrong: wrong values, not a wrong stride or an error."""
    return bool(report.get("is_bug")) and Verdict(str(report["verdict"])).kind == "values"


def confirms(report: Mapping[str, object]) -> bool:
    """Whether triage confirms what is merely suspicious: a proved culprit, without which the values are right."""
    culprit = report.get("culprit")
    return wrong_by_value(report) and isinstance(culprit, Mapping) and culprit.get("necessary") is True


def _detail(judgement: Judgement, comparisons: Sequence[Comparison]) -> str:
    wrong = [c for c in comparisons if c.finding not in ("same", "close")]
    if judgement.verdict in (Verdict.EQUAL, Verdict.ROUNDING) or not wrong:
        return ""
    first, more = wrong[0], f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    eager = f"where eager is off by {_relative(first, first.max_error_eager):.1e}"
    return f"{first.name}{more}: off by {first.relative_error:.1e} of its size, {eager}"


def _shown(comparison: Comparison) -> dict[str, object]:
    numbers = {
        "max_abs_error_compiled": comparison.max_error_compiled,
        "max_abs_error_eager": comparison.max_error_eager,
        "noise_floor": comparison.noise_floor,
        "scale": comparison.scale,
    }
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"name": comparison.name, "finding": comparison.finding, **finite, "detail": comparison.detail}


def _largest(comparisons: Sequence[Comparison], groups: Mapping[str, str], field: str) -> dict[str, float]:
    largest: dict[str, float] = {}
    for comparison in comparisons:
        error = _relative(comparison, getattr(comparison, field))
        group = groups[comparison.name]
        if math.isfinite(error):
            largest[group] = max(largest.get(group, 0.0), error)
    return largest


def _relative(comparison: Comparison, error: float) -> float:
    return error / comparison.scale if comparison.scale > 0 else error


def _unseen(runs: StepRuns) -> Iterator[str]:
    compiled, eager, reference = runs.compiled, runs.eager, runs.reference
    if reference is None or reference.failure is not None:
        why = "did not end" if reference is None or reference.failure is None else reference.failure[1]
        yield f"no float64 run ({why}): eager stands in for it"
    elif not eager.draws_alike(reference):
        yield "the float64 run draws other random numbers: eager stands in for it"
    if not runs.noisy:
        yield "no perturbed run ended well: the noise floor is not known"
    if eager.ended:
        yield f"what follows in the step, where {eager.ended}"
    missing = set(compiled.values) ^ set(eager.values)
    if missing and not eager.ended and not compiled.ended:
        yield f"{len(missing)} values that only one of the runs has, such as {min(missing)}"
    if compiled.left_out:
        yield f"{compiled.left_out} values beyond what is kept of a step"
    if compiled.sampled:
        yield f"of {compiled.sampled} large tensors some rows only"
