"""Triage: judge one case, and attribute what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from fuzzcompile.attribution.attribute import Attributor, failing_rewrite, shows_strides, suspects_of
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.steps import ReplayCount, Step, steps_of
from fuzzcompile.case import Case
from fuzzcompile.deciding import Decision, confirmed, decide, randomness, survival
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.observation import Observation
from fuzzcompile.experiments import Experiments, Trial
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.same import torch_same
from fuzzcompile.inductor.session import Compilation
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.judgement import same_bits
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.oracle.warned import changed_warnings
from fuzzcompile.report import Cost, CoverageCount, Report


class CannotJudge(EnvironmentUnfit):
    """The case ran, but nothing can be said of it (exit status 3)."""


def triage(
    case: Case,
    device: torch.device,
    *,
    against: str = "eager",
    vetoes: Sequence[str] = (),
    known: Collection[tuple[str, str]] = (),
    deadline: float | None = None,
    thorough: bool = False,
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
        thorough: spend further compiles on evidence: the program in float64 where values are apart, and, where it
            draws random numbers, the compiler's own random stream.
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
    steps, decision = _decided(experiments, trial, count)
    own_stream = None
    if thorough and not decision.verdict.is_bug and trial.observation.failure is None and experiments.depends_on_seeds:
        # Other rewrites fire where the compiler need not follow eager's random numbers.
        other = experiments.under(replace(experiments.how, fallback_random=False))
        own_stream = other.trial()
        found = _decided(other, own_stream, count)
        if found[1].verdict.is_bug:
            experiments, trial, (steps, decision) = other, own_stream, found
    survives = survival(experiments, trial, decision, ask=thorough)

    def report(attribution: Attribution) -> Report:
        return replace(
            _report(experiments, trial, steps, decision, attribution, count),
            cost=Cost(experiments.compiles, count.replays, time.perf_counter() - start, experiments.screens),
            survives_float64=survives,
            randomness=randomness(experiments, trial, own_stream=own_stream),
        )

    unproved = Attribution(changed_bits=_changed_bits(steps))
    if not decision.verdict.is_bug or decision.verdict is Verdict.NONDETERMINISTIC:
        return report(unproved)
    hit = _known_culprit(trial, steps, decision.verdict, known)
    if hit is not None:
        return report(replace(unproved, culprit=hit))
    if decision.border is not None:  # no veto reaches a decomposition
        return report(replace(unproved, culprit=decision.border.culprit()))
    on_verdict(report(unproved))
    proved = Attributor(experiments, trial, steps, count, evidence=decision.evidence, deadline=deadline).run()
    return report(replace(proved, changed_bits=unproved.changed_bits))


def _decided(experiments: Experiments, trial: Trial, count: ReplayCount) -> tuple[list[Step], Decision]:
    steps = steps_of(trial.ledger, count)
    decision = decide(experiments, trial, steps)
    return steps, confirmed(experiments, trial, decision) if decision.verdict.is_bug else decision


def _report(
    experiments: Experiments,
    trial: Trial,
    steps: Sequence[Step],
    decision: Decision,
    attribution: Attribution,
    count: ReplayCount,
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
        coverage=_coverage(trial),
        against=experiments.against,
        graphs=len(trial.ledger.frames) or trial.ledger.graphs,
        # Of a program that was never captured, dynamo lists errors and no breaks.
        graph_breaks=trial.ledger.graph_breaks if trial.ledger.graphs else (),
        warnings=changed_warnings(experiments.eager, trial.observation),
        notes=experiments.case.notes,
    )


# -- what cannot be judged -----------------------------------------------------------------------


def _refuse_unsupported(case: Case, trial: Trial) -> None:
    failure = trial.observation.failure
    if failure is not None and failure.unsupported and case.settings.fullgraph:
        raise CannotJudge(
            f"{case.name} asks for FULLGRAPH, which dynamo cannot honour: {failure.message}; "
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
    if failure is None and not trial.ledger.frames and not trial.ledger.graphs:
        why = "; ".join(trial.ledger.graph_breaks)
        raise CannotJudge(
            f"Nothing of {case.name} is compiled: dynamo captures no graph of it{f' ({why})' if why else ''}."
        )
    if failure is None:
        return
    if failure.type_name in _MACHINE_ERRORS or any(text in failure.message for text in _MACHINE_MESSAGES):
        raise CannotJudge(
            f"{case.name} cannot be compiled on this machine ({failure}); `fuzzcompile doctor` says what is missing."
        )


_MACHINE_ERRORS = ("InvalidCxxCompiler", "TritonMissing", "OutOfMemoryError")
_MACHINE_MESSAGES = ("No space left on device", "Cannot find a working triton installation", "out of memory")


# -- the rest of the report -------------------------------------------------------------------------


def _confidence(decision: Decision, attribution: Attribution) -> str:
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
    runs = (experiments.baseline, trial.observation, experiments.reference)
    random = trial.sampled or ()
    return tuple(c if c.name in random else _same(c, *runs) for c in trial.judgement.comparisons)


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
