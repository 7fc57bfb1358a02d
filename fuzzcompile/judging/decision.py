"""From what the runs showed to a decision: the judge's verdict, refined by float64, emulated casts and repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.attribution.evidence import REPLAY, SUSPICION, VALUES, Evidence
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import Step, changing_meaning
from fuzzcompile.judging.promises import breaks_silently, promises_casts
from fuzzcompile.oracle import streams
from fuzzcompile.oracle.change import SEMANTIC_STEP, relative_change
from fuzzcompile.oracle.evidence import Comparison
from fuzzcompile.oracle.judgement import GROSS, Judgement, same_bits, wrong_values
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stage_names import PRE_GRAD
from fuzzcompile.stages.operators.boundary import BOUNDARY, Boundary, boundaries_of
from fuzzcompile.trials.compiles import Experiments, Trial


@dataclass(frozen=True)
class Decision:
    """A verdict that stands, and what shows it; ``boundary`` is the change of meaning before the graph passes."""

    verdict: Verdict
    confidence: str
    detail: str = ""
    evidence: Evidence = VALUES
    boundary: Boundary | None = None


def decide(experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> Decision:
    """The judge's verdict, refined by what float64 and emulated casts say.

    Args:
        experiments: make the further runs and compiles that this takes.
        trial: the judged compile.
        steps: how much each of its rewrites moved the result.
    """
    first = trial.judgement
    if first.verdict is Verdict.COMPILE_ERROR and _backward_raises_alike(experiments, trial):
        return Decision(
            Verdict.INVALID,
            first.confidence,
            "eager raises this as well, in backward, which the compiler traces ahead of time; compile under no_grad",
        )
    if not first.verdict.is_bug and breaks_silently(experiments, trial):
        return Decision(Verdict.ACCEPTS_INVALID, "high", f"{_BROKE}: {'; '.join(trial.ledger.graph_breaks)}")
    semantic = [] if experiments.compares_modes else changing_meaning(steps)
    if first.casts_dropped and not first.verdict.is_bug and not semantic:
        return _decide_casts(experiments, first)
    if first.verdict in (Verdict.ROUNDING, Verdict.EQUAL):
        return _within_rounding(experiments, trial, semantic)
    if (
        first.verdict is Verdict.UNSTABLE
        and experiments.runs.has_low_precision_casts
        and _emulation_repairs(experiments)
    ):
        return Decision(
            Verdict.PRECISION_CASTS,
            first.confidence,
            "low-precision casts in the program, which overflow, are elided; equal under emulate_precision_casts",
        )
    if trial.sampled is not None:  # random values: float64 draws others
        return Decision(first.verdict, first.confidence, first.detail)
    far = first.verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT) and all(
        c.finding != "integer" for c in first.comparisons
    )
    if far and not semantic:
        return _decide_precision(experiments, first)
    return Decision(first.verdict, first.confidence, first.detail)


def _backward_raises_alike(experiments: Experiments, trial: Trial) -> bool:
    """Return whether compiling raised the error that eager raises once gradients are requested."""
    failed, eager = trial.observation.failure, experiments.runs.backward_failure
    if failed is None or eager is None or failed.type_name != eager.type_name:
        return False
    return failed.message.partition(":")[0] == eager.message.partition(":")[0]


def _within_rounding(experiments: Experiments, trial: Trial, semantic: Sequence[Step]) -> Decision:
    """Values that rounding explains natively: what float64 says of the graphs, the program and its casts."""
    first = trial.judgement
    if semantic:
        return Decision(
            wrong_values(first),
            first.confidence,
            f"within rounding natively, but {semantic[0].label.rewrite} moves the float64 result by "
            f"{semantic[0].float64:.1e} of its size",
            evidence=REPLAY,
        )
    boundary = None if first.verdict is Verdict.EQUAL else _boundary(experiments, trial)
    if boundary is not None and _has_other_kernel(experiments, trial, boundary):
        return Decision(
            first.verdict,
            "low",
            f"in float64 the captured graph and the compiler's differ by {boundary.step:.1e} of a result's size, which "
            "the values of both runs contradict: there, attention takes another kernel",
        )
    if boundary is not None:
        what = f"the decomposition of {boundary.operator}" if boundary.operator else "a decomposition"
        return Decision(
            wrong_values(first),
            first.confidence,
            f"within rounding natively, but {what} moves a float64 "
            f"{'gradient' if boundary.gradient else 'result'} by {boundary.step:.1e} of its size",
            evidence=BOUNDARY,
            boundary=boundary,
        )
    if trial.sampled is None and first.suspicious and survives_float64(experiments):
        return Decision(
            wrong_values(first),
            "low",
            "small, but it survives when the program is compiled in float64",
            evidence=SUSPICION,
        )
    if _elided_casts_show(experiments, first):
        return Decision(Verdict.PRECISION_CASTS, first.confidence, _ELIDED)
    return Decision(first.verdict, first.confidence)


def _boundary(experiments: Experiments, trial: Trial) -> Boundary | None:
    """The largest change of meaning between dynamo's graphs and those that the passes get."""
    if experiments.compares_modes:
        return None
    boundaries = boundaries_of(trial.ledger, ReplayCount())
    return max(boundaries, key=lambda boundary: boundary.step, default=None)


def _decide_casts(experiments: Experiments, first: Judgement) -> Decision:
    """Right only without the user's casts: their verdict, if emulating the casts makes it right with them."""
    if promises_casts(experiments):
        return Decision(Verdict.PRECISION_LOSS, first.confidence, _CASTS_BROKEN)
    if not _emulation_repairs(experiments):
        return Decision(Verdict.ROUNDING, "low", "compiled keeps more precision than the program asks for")
    return Decision(Verdict.PRECISION_CASTS, first.confidence, _ELIDED)


def _has_other_kernel(experiments: Experiments, trial: Trial, boundary: Boundary) -> bool:
    """Return whether attention's float64 kernel causes the change, which the native values contradict.

    No fused kernel of a GPU takes float64, and the math kernel in its place treats some rows in another way: torch 2.11
    hands cuDNN -65504 for what is masked, so that it averages a row without any key, which the math kernel makes zero.
    """
    if experiments.device.type != "cuda" or boundary.step <= _HIDEABLE:
        return False
    captured = [frame.record(PRE_GRAD) for frame in trial.ledger.frames if frame.index == boundary.frame]
    calls = [call for record in captured if record is not None for call in record.snapshots[-1].calls]
    eager, compiled = experiments.baseline.named(), trial.observation.named()
    pairs = [(eager[name].value, compiled[name].value) for name in eager.keys() & compiled.keys()]
    apart = max((relative_change(before, after) for before, after in pairs), default=float("inf"))
    return apart < boundary.step / 10 and any("scaled_dot_product" in call for call in calls)


# A change by more than this share of a result's size does not hide in rounding, not even in bfloat16's.
_HIDEABLE = 0.5
_BROKE = "the graph breaks, although FULLGRAPH promises an error there"
_CASTS_BROKEN = "low-precision casts in the program are elided, although emulate_precision_casts promises to keep them"
_ELIDED = "low-precision casts in the program are elided; equal under emulate_precision_casts"


def _elided_casts_show(experiments: Experiments, first: Judgement) -> bool:
    """Return whether elided casts are visible: beyond default tolerances, and within them if the casts are kept."""
    if not experiments.runs.has_low_precision_casts or all(c.within_default_tolerance for c in first.comparisons):
        return False
    return _emulation_repairs(experiments, closely=True)


def _emulation_repairs(experiments: Experiments, *, closely: bool = False) -> bool:
    """Return whether eager and compiled agree under ``emulate_precision_casts`` with the user's casts kept.

    ``closely``: within default tolerances.
    """
    how = replace(experiments.how, record=False, config={"emulate_precision_casts": True})
    emulated = experiments.trial(how).judgement
    benign = emulated.verdict in (Verdict.EQUAL, Verdict.ROUNDING)
    close = not closely or all(c.within_default_tolerance for c in emulated.comparisons)
    return benign and close and not emulated.suspicious and not emulated.casts_dropped


def _decide_precision(experiments: Experiments, first: Judgement) -> Decision:
    """Wrong values that no rewrite explains: lost precision, if they are right when compiled in float64."""
    worst = max((c.relative_error for c in first.suspicious), default=0.0)
    gross = worst > GROSS or any(_off_by_whole(c) for c in first.suspicious)
    # Where it stays in float64, or that is not known, precision is not what is lacking.
    if gross or _is_float64(experiments) or survives_float64(experiments) is not False:
        return Decision(first.verdict, first.confidence, first.detail)
    return Decision(
        Verdict.PRECISION_LOSS,
        first.confidence,
        "far from float64 where eager is not; gone when compiled in float64",
    )


def _is_float64(experiments: Experiments) -> bool:
    """Return whether the program already computes in float64, so that no higher precision exists."""
    floating = [v.value.dtype for v in experiments.runs.eager.values if v.is_tensor and v.value.is_floating_point()]
    return bool(floating) and set(floating) == {torch.float64}


def _off_by_whole(comparison: Comparison) -> bool:
    """Return whether the worst element is whole in all runs and differs when compiled: no lack of precision."""
    values = [comparison.at.get(run) for run in ("eager", "compiled", "float64")]
    return all(value is not None and float(value).is_integer() for value in values) and values[0] != values[1]


def survives_float64(experiments: Experiments) -> bool | None:
    """Return whether the divergence is there, beyond rounding, when the program itself is compiled in float64.

    None if it cannot be run there, or draws other numbers when compiled. One compile, made once.
    """
    judged = experiments.in_float64
    if judged is None:
        return None
    return any(
        c.finding in ("integer", "nonfinite")
        or (c.finding == "far" and not c.by_norm and c.relative_error > SEMANTIC_STEP)
        for c in judged.comparisons
    )


def confirmed(experiments: Experiments, trial: Trial, decision: Decision) -> Decision:
    """The decision, if a second compile shows the finding too or gives the same bits; else ``nondeterministic``.

    Args:
        experiments: make the second compile.
        trial: the first compile.
        decision: what was decided on it.
    """
    evidence = decision.evidence
    second = experiments.trial(replace(experiments.how, record=evidence.replays, timed=True))
    if evidence.replays:
        again = evidence.shows(second, ReplayCount())
    else:
        again = second.judgement.verdict.is_bug or bool(second.judgement.suspicious)
    if again or same_bits(trial.observation, second.observation):
        return decision
    return Decision(
        Verdict.NONDETERMINISTIC,
        "low",
        f"{decision.verdict} in the first compile, {second.judgement.verdict} in the second",
    )


def survival(experiments: Experiments, trial: Trial, decision: Decision, *, ask: bool) -> bool | None:
    """Return whether the divergence persists in float64, as the report states it.

    Args:
        experiments: compile the program in float64, unless they have.
        trial: the judged compile.
        decision: the verdict on it.
        ask: make that compile if values are apart at all; otherwise only a known answer is given.

    Returns:
        None if it was not tried, or can say nothing.
    """
    values = decision.verdict.kind == "values" or any(
        not c.within_default_tolerance for c in trial.judgement.comparisons
    )
    if trial.sampled is not None or trial.observation.failure is not None or not values:
        return None
    if not same_bits(experiments.runs.eager, experiments.again):
        return None  # what eager itself does not repeat differs in float64 as well
    return survives_float64(experiments) if ask or experiments.knows_float64 else None


def randomness(experiments: Experiments, trial: Trial, *, own_stream: Trial | None = None) -> str | None:
    """Describe how a program that draws random numbers was judged; None if it draws none.

    Args:
        experiments: the runs of the case.
        trial: the judged compile.
        own_stream: the compile in which the compiler drew from a stream of its own, if there was one.
    """
    if not experiments.runs.draws:
        return None
    drawn = " and ".join(experiments.runs.draws)
    if trial is own_stream:
        text = f"the compiler's own stream (fallback_random=False), not {drawn}'s: {_SAMPLED}"
    elif trial.draws_others:
        text = f"draws from {drawn}; compiled draws other numbers, although fallback_random promises eager's own"
    elif trial.sampled is not None:
        text = f"random stream not aligned (compiled draws from {drawn} in another way than eager): {_SAMPLED}"
    else:
        text = f"draws from {drawn}; compiled draws the same numbers"
    if not experiments.runs.reference.failure and not experiments.runs.reference_draws_alike:
        text += "; the float64 run draws others, so that eager stands in for the reference"
    if own_stream is not None and own_stream is not trial:
        text += "; with the compiler's own stream (fallback_random=False) no difference either"
    return text


_SAMPLED = f"judged on support, mean, RMS, range and the gradient's mask over {streams.SEEDS} seeds"
