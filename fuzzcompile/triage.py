"""Triage: judge one case, and attribute what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.attribution.attribute import (
    Attributor,
    Evidence,
    changes_meaning,
    failing_rewrite,
    shows_strides,
    suspects_of,
)
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.steps import SEMANTIC_STEP, ReplayCount, Step, steps_of
from fuzzcompile.case import Case
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.observation import Observation
from fuzzcompile.experiments import Experiments, Trial
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.same import torch_same
from fuzzcompile.inductor.session import Compilation
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.judgement import GROSS, Judgement, same_bits, wrong_values
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.report import Cost, CoverageCount, Report


class CannotJudge(EnvironmentUnfit):
    """The case ran, but nothing can be said of it (exit status 3)."""


@dataclass(frozen=True)
class _Decision:
    verdict: Verdict
    confidence: str
    detail: str = ""
    evidence: Evidence = "values"


def triage(
    case: Case,
    device: torch.device,
    *,
    against: str = "eager",
    vetoes: Sequence[str] = (),
    known: Collection[tuple[str, str]] = (),
    deadline: float | None = None,
    on_eager: Callable[[], None] = lambda: None,
    on_verdict: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Judge ``case`` on ``device``, in this process.

    Args:
        case: the loaded case.
        device: where to run it.
        against: what compiled is compared with (:class:`~fuzzcompile.experiments.Experiments`).
        vetoes: rewrites that are refused throughout, by name.
        known: signatures, each with the kind of its verdict, that need no further proof: a bug whose first
            suspect has one of them is a hit of it, and ``necessary`` stays None.
        deadline: value of ``time.monotonic()`` after which attribution begins no further compile.
        on_eager: called once all eager runs are done, before anything is compiled: a crash or time-out after
            that is the compiler's.
        on_verdict: called with a report on a bug before it is attributed.

    Raises:
        CaseError: ``make()`` fails.
        CannotJudge: the case asks for ``FULLGRAPH`` and cannot be captured in one graph, nothing of it is
            compiled, or the machine lacks what compiling needs.
    """
    start = time.perf_counter()
    initialise_patterns(device)
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes)), against=against)
    count = ReplayCount()
    experiments.run_eager()
    on_eager()
    trial = experiments.trial()
    _refuse_unsupported(case, trial)
    _refuse_unfit(case, trial)
    steps = steps_of(trial.ledger, count)
    decision = _decide(experiments, trial, steps)
    if decision.verdict.is_bug:
        decision = _confirmed(experiments, trial, decision)

    def report(attribution: Attribution) -> Report:
        return _report(experiments, trial, steps, decision, attribution, count, time.perf_counter() - start)

    unproved = Attribution(changed_bits=_changed_bits(steps))
    if not decision.verdict.is_bug or decision.verdict is Verdict.NONDETERMINISTIC:
        return report(unproved)
    hit = _known_culprit(trial, steps, decision.verdict, known)
    if hit is not None:
        return report(replace(unproved, culprit=hit))
    on_verdict(report(unproved))
    found = Attributor(experiments, trial, steps, count, evidence=decision.evidence, deadline=deadline).run()
    return report(replace(found, changed_bits=unproved.changed_bits))


def _report(
    experiments: Experiments,
    trial: Trial,
    steps: Sequence[Step],
    decision: _Decision,
    attribution: Attribution,
    count: ReplayCount,
    seconds: float,
) -> Report:
    case, device = experiments.case, experiments.device
    return Report(
        case=case.name,
        torch=torch.__version__,
        device=str(device),
        verdict=decision.verdict,
        confidence=_confidence(decision, attribution),
        detail=decision.detail,
        comparisons=_with_torch_same(experiments, trial),
        eager_deterministic=_deterministic(experiments),
        float64_step=max((s.float64 for s in steps if s.float64 is not None and not s.random), default=None),
        failure=trial.observation.failure,
        attribution=attribution,
        cost=Cost(experiments.compiles, count.replays, seconds, experiments.screens),
        coverage=_coverage(trial),
        against=experiments.against,
        graphs=len(trial.ledger.frames),
        notes=experiments.case.notes,
    )


# -- the verdict ------------------------------------------------------------------------------------


def _decide(experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> _Decision:
    """The judge's verdict, refined by what float64 and emulated casts say."""
    first = trial.judgement
    semantic = changes_meaning(steps)
    if first.casts_dropped and not first.verdict.is_bug and not semantic:
        return _decide_casts(experiments, first)
    if first.verdict in (Verdict.ROUNDING, Verdict.EQUAL):
        if semantic:
            return _Decision(
                wrong_values(first),
                first.confidence,
                f"within rounding natively, but {semantic[0].label.rewrite} moves the float64 result by "
                f"{semantic[0].float64:.1e} of its size",
                evidence="replay",
            )
        if first.suspicious and _survives_float64(experiments):
            return _Decision(
                wrong_values(first),
                "low",
                "small, but it survives when the program is compiled in float64",
                evidence="suspicion",
            )
        return _Decision(first.verdict, first.confidence)
    far = first.verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT) and all(
        c.finding != "integer" for c in first.comparisons
    )
    if far and not semantic:
        return _decide_precision(experiments, first)
    return _Decision(first.verdict, first.confidence, first.detail)


def _decide_casts(experiments: Experiments, first: Judgement) -> _Decision:
    """Right only without the user's casts: their verdict, if emulating the casts makes it right with them."""
    how = replace(experiments.how, record=False, config={"emulate_precision_casts": True})
    emulated = experiments.trial(how).judgement
    if emulated.suspicious or emulated.casts_dropped or emulated.verdict.is_bug:
        return _Decision(Verdict.ROUNDING, "low", "compiled keeps more precision than the program asks for")
    return _Decision(
        Verdict.PRECISION_CASTS,
        first.confidence,
        "low-precision casts in the program are elided; equal under emulate_precision_casts",
    )


def _decide_precision(experiments: Experiments, first: Judgement) -> _Decision:
    """Wrong values that no rewrite explains: lost precision, if they are right when compiled in float64."""
    worst = max((c.relative_error for c in first.suspicious), default=0.0)
    if worst > GROSS or _survives_float64(experiments):
        return _Decision(first.verdict, first.confidence, first.detail)
    return _Decision(
        Verdict.PRECISION_LOSS,
        first.confidence,
        "far from float64 where eager is not; gone when compiled in float64",
    )


def _survives_float64(experiments: Experiments) -> bool:
    """Whether the divergence is there, beyond rounding, when the program itself is compiled in float64."""
    judged = experiments.in_float64()
    if judged is None:
        return False
    return any(c.finding in ("integer", "nonfinite") or c.relative_error > SEMANTIC_STEP for c in judged.comparisons)


def _confirmed(experiments: Experiments, trial: Trial, decision: _Decision) -> _Decision:
    """A finding is believed after it came twice."""
    second = experiments.trial(replace(experiments.how, record=decision.evidence == "replay"))
    if decision.evidence == "replay":
        again = bool(changes_meaning(steps_of(second.ledger, ReplayCount())))
    else:
        again = second.judgement.verdict.is_bug or bool(second.judgement.suspicious)
    if again or same_bits(trial.observation, second.observation):
        return decision
    return _Decision(
        Verdict.NONDETERMINISTIC,
        "low",
        f"{decision.verdict} in the first compile, {second.judgement.verdict} in the second",
    )


def _refuse_unsupported(case: Case, trial: Trial) -> None:
    failure = trial.observation.failure
    if failure is not None and failure.unsupported and case.settings.fullgraph:
        raise CannotJudge(
            f"{case.name} asks for FULLGRAPH, which dynamo cannot honour ({failure.message}); "
            "remove FULLGRAPH or the graph break."
        )


def _known_culprit(
    trial: Trial, steps: Sequence[Step], verdict: Verdict, known: Collection[tuple[str, str]]
) -> Culprit | None:
    """The first suspect, if what it would be reported as is known already."""
    if not known or not verdict.is_bug:
        return None
    suspects = suspects_of(steps, strides=shows_strides(trial))
    failing = failing_rewrite(trial)
    if failing is not None:
        suspect = Culprit.from_label(failing, confidence="low")
    elif suspects:
        suspect = Culprit.from_step(suspects[0], confidence="low")
    else:
        return None
    return suspect if (suspect.signature, verdict.kind) in known else None


def _refuse_unfit(case: Case, trial: Trial) -> None:
    """An error of the machine is no error of the compiler; a program that was not compiled is not clean."""
    failure = trial.observation.failure
    if failure is None and not trial.ledger.frames:
        raise CannotJudge(f"Nothing of {case.name} is compiled: dynamo captures no graph of it.")
    if failure is None:
        return
    if failure.type_name in _MACHINE_ERRORS or any(text in failure.message for text in _MACHINE_MESSAGES):
        raise CannotJudge(
            f"{case.name} cannot be compiled on this machine ({failure}); `fuzzcompile doctor` says what is missing."
        )


_MACHINE_ERRORS = ("InvalidCxxCompiler", "TritonMissing", "OutOfMemoryError")
_MACHINE_MESSAGES = ("No space left on device", "Cannot find a working triton installation", "out of memory")


# -- the rest of the report -------------------------------------------------------------------------


def _confidence(decision: _Decision, attribution: Attribution) -> str:
    culprit = attribution.culprit
    if culprit is not None and (culprit.confidence == "low" or not culprit.necessary):
        return "low"
    return decision.confidence


def _changed_bits(steps: Sequence[Step]) -> list[Culprit]:
    return [Culprit.from_step(step) for step in steps if step.changed_bits and not step.random]


def _deterministic(experiments: Experiments) -> bool:
    return bool(experiments.eager.failure) or same_bits(experiments.eager, experiments.again)


def _with_torch_same(experiments: Experiments, trial: Trial) -> tuple[Comparison, ...]:
    if not trial.judgement.comparisons or experiments.reference.failure:
        return trial.judgement.comparisons
    runs = (experiments.eager, trial.observation, experiments.reference)
    return tuple(_same(comparison, *runs) for comparison in trial.judgement.comparisons)


def _same(comparison: Comparison, eager: Observation, compiled: Observation, reference: Observation) -> Comparison:
    if comparison.finding == "same":
        return replace(comparison, torch_same=True)
    values = [run.named().get(comparison.name) for run in (eager, compiled, reference)]
    tensors = [v.value for v in values if v is not None and isinstance(v.value, torch.Tensor)]
    if len(tensors) != 3 or len({t.shape for t in tensors}) > 1 or not tensors[0].numel():
        return comparison
    try:
        return replace(comparison, torch_same=torch_same(*tensors))
    except (AssertionError, RuntimeError, TypeError):  # it asserts on dtypes and types it does not know
        return comparison


def _coverage(trial: Trial) -> tuple[CoverageCount, ...]:
    return tuple(
        CoverageCount(label.stage, label.pass_name, label.rewrite, outcome, count)
        for (label, outcome), count in trial.ledger.coverage.items()
    )
