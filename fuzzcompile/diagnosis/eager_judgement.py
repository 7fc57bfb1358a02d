"""The judgement on eager mode alone (``PATH = "eager"``): a run held against a second reference, without any compile.

Four faults show. A kernel, or a function composed of several, may contradict the other opinions on it in float64
(`SecondReference`); or it is right there and wrong in the program's own dtype, by more than rounding explains; or it
reads memory beside its arguments (`find_unsteady_kernel`); or the formula of its gradient is wrong
(`iter_wrong_gradients`).

The reference is float64, rounded once. What eager may be away from it is measured by perturbed runs, whose moves are
taken from the reference and not from eager: a kernel's own error is in every run of eager, and would excuse itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.gradient_judgement import iter_wrong_gradients
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.wrong_side import (
    SideVerdict,
    blame_kernel,
    find_unsteady_kernel,
    judge_run,
    name_native_fault,
    name_parted,
    run_second,
    weigh_gradients,
)
from fuzzcompile.model.verdicts import Comparison, Verdict


@dataclass(frozen=True)
class EagerJudgement:
    """What is said of a case in eager mode: the run as a trial, the decision, and the kernel at fault."""

    trial: Trial
    decision: Decision
    side: SideVerdict | None = None


def judge_eager(experiments: Experiments) -> EagerJudgement:
    """Judge eager mode on a case.

    Raises:
        CannotJudge: it draws random numbers, or the second reference cannot be run.
    """
    started, made = time.perf_counter(), experiments.runs
    if made.eager.failure:
        judged = Judgement(Verdict.INVALID, detail=f"eager raises {made.eager.failure}")
        return _conclude(experiments, started, judged)
    if made.draws:
        raise CannotJudge(f"{experiments.case.name} draws random numbers: no reference says what they should be.")
    unsteady = None if experiments.is_deterministic else _judge_steadiness(experiments)
    if unsteady is not None:
        return _conclude(experiments, started, *unsteady)
    second, mode = run_second(made)
    if second.failure is not None:
        raise CannotJudge(f"A second reference of {experiments.case.name} cannot be run: it raises {second.failure}.")
    contested = [call for call in mode.contested if call.kernel_is_wrong]
    undecided = [call for call in mode.contested if call.kernel_is_wrong is None]
    if undecided and not contested and weigh_gradients(made, second, run_second(made, undecided)[0]) == "eager":
        contested, undecided = undecided, []
    exact = run_second(made, contested)[0] if contested else second
    judged = judge_run(experiments, exact, made.eager)
    if contested and judged.verdict is Verdict.WRONG_GRADIENT and weigh_gradients(made, second, exact) == "compiled":
        # What the operators give depends on layout by design (LU factors), and the backward pass knows it.
        exact, contested = second, []
        judged = judge_run(experiments, exact, made.eager)
    if not judged.verdict.is_bug:
        # A float64 program that is repaired to agree with eager is not the one whose gradients are measured.
        formula = None if contested else _judge_gradients(experiments, judged)
        if formula is not None:
            return _conclude(experiments, started, *formula)
        return _conclude(
            experiments, started, replace(judged, detail=f"{name_parted(undecided)}, undecided" if undecided else "")
        )
    if not contested:
        side = name_native_fault(experiments, exact)
        unsteady = _judge_steadiness(experiments) if side is None else None
        return _conclude(experiments, started, *(unsteady or (judged, side)))
    ranked = sorted(contested, key=lambda call: -call.opinion.step)
    alone = (call for call in ranked if judge_run(experiments, run_second(made, [call])[0], made.eager).verdict.is_bug)
    found = ranked[0] if len(ranked) == 1 else next(alone, ranked[0])
    return _conclude(experiments, started, judged, blame_kernel(found))


def _judge_steadiness(experiments: Experiments) -> tuple[Judgement, SideVerdict] | None:
    """The judgement on the first wrong one of two runs, and the kernel that gives other values from run to run."""
    made = experiments.runs
    unsteady = find_unsteady_kernel(made)
    if unsteady is None:
        return None
    judgements = (unsteady.judge(made, run) for run in (made.eager, experiments.again))
    wrong = next((judged for judged in judgements if judged.verdict.is_bug), None)
    side = blame_kernel(unsteady.call)
    return None if wrong is None else (wrong, side)


def _judge_gradients(experiments: Experiments, judged: Judgement) -> tuple[Judgement, SideVerdict] | None:
    """The judgement beside gradients by differences, if these can be had, and the operator whose own are wrong.

    None if there is none, or if eager mode in the program's own dtype is right: an operator may contradict itself in
    float64 alone.
    """
    for gradient in iter_wrong_gradients(experiments.runs):
        side = blame_kernel(gradient.call, proved=gradient.repaired is not None)
        if gradient.repaired is None:
            return replace(judged, confidence="low"), side
        beside = judge_run(experiments, gradient.repaired, experiments.runs.eager)
        if beside.verdict is Verdict.WRONG_GRADIENT:
            return beside, side
    return None


def _name_own_side(comparison: Comparison) -> Comparison:
    """The comparison with eager's values under eager's name, and the reference's in the place of compiled ones."""
    own = comparison.with_errors_of_eager(comparison)
    return replace(
        own,
        max_abs_error_compiled=comparison.max_abs_error_eager,
        rms_error_compiled=comparison.rms_error_eager,
        max_ulps_compiled=comparison.max_ulps_eager,
        at={**own.at, "compiled": comparison.at.get("eager")} if own.at else own.at,
    )


def _conclude(
    experiments: Experiments, started: float, judged: Judgement, side: SideVerdict | None = None
) -> EagerJudgement:
    decision = Decision(judged.verdict, judged.confidence, judged.detail)
    if side is not None:
        decision = Decision(Verdict.EAGER_WRONG, judged.confidence, side.why)
    elif judged.verdict.is_bug:
        decision = Decision(
            Verdict.UNSTABLE, "low", "farther from float64 than rounding explains, and no kernel alone is why"
        )
    seconds = time.perf_counter() - started
    judged = replace(judged, comparisons=tuple(map(_name_own_side, judged.comparisons)))
    return EagerJudgement(Trial(experiments.how, experiments.runs.eager, judged, Ledger(), seconds), decision, side)
