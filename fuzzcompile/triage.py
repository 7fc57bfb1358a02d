"""Triage: judge one case, and attribute what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzcompile.attribution.attribute import Attributor, changes_meaning, names_stage, shows_strides, suspects_of
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.steps import SEMANTIC_STEP, ReplayCount, Step, steps_of
from fuzzcompile.case import Case
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.observation import Observation
from fuzzcompile.experiments import Experiments, Trial
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.labels import family_of
from fuzzcompile.inductor.ledger import Label
from fuzzcompile.inductor.same import torch_same
from fuzzcompile.inductor.session import Compilation
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.judgement import GROSS, Judgement, same_bits
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.report import Cost, CoverageCount, Report


class CannotJudge(EnvironmentUnfit):
    """The case ran, but nothing can be said of it (exit status 3)."""


@dataclass(frozen=True)
class _Decision:
    verdict: Verdict
    confidence: str
    detail: str = ""
    hidden: bool = False


def triage(
    case: Case,
    device: torch.device,
    *,
    vetoes: Sequence[str] = (),
    attribute: bool = True,
    confirm: bool = True,
    known: Collection[tuple[str, str]] = (),
    on_eager: Callable[[], None] = lambda: None,
) -> Report:
    """Judge ``case`` on ``device``, in this process.

    Args:
        case: the loaded case.
        device: where to run it.
        vetoes: rewrites that are refused throughout, by name.
        attribute: whether a bug is attributed (a few more compiles).
        confirm: whether a bug must come twice before it is believed.
        known: signatures, each with the kind of its verdict, that need no further proof: a bug whose first
            suspect has one of them is a hit of it, and ``necessary`` stays None.
        on_eager: called once eager has run, before anything is compiled: a crash or time-out after that is
            the compiler's.

    Raises:
        CaseError: ``make()`` fails.
        CannotJudge: the case asks for ``FULLGRAPH`` and cannot be captured in one graph.
    """
    start = time.perf_counter()
    initialise_patterns(device)
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes)))
    count = ReplayCount()
    _ = experiments.eager
    on_eager()
    trial = experiments.trial()
    _refuse_unsupported(case, trial)
    steps = steps_of(trial.ledger, count)
    decision = _decide(experiments, trial, steps)
    if decision.verdict.is_bug and confirm:
        decision = _confirmed(experiments, trial, decision)
    attribution = Attribution(changed_bits=_changed_bits(steps))
    hit = _known_culprit(trial, steps, decision.verdict, known)
    if hit is not None:
        attribution = replace(attribution, culprit=hit)
    elif decision.verdict.is_bug and attribute:
        found = Attributor(experiments, trial, steps, count, hidden=decision.hidden).run()
        attribution = replace(found, changed_bits=attribution.changed_bits)
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
        cost=Cost(experiments.compiles, count.replays, time.perf_counter() - start, experiments.screens),
        coverage=_coverage(trial),
    )


@dataclass(frozen=True)
class Probe:
    """A quick look at a case: one compile, no proof. ``suspect`` is the first suspected rewrite."""

    verdict: Verdict
    is_bug: bool
    suspect: Label | None


@dataclass(frozen=True)
class Target:
    """The signature that a reduction is locked to."""

    verdict: str
    stage: str | None
    source: str | None
    families: tuple[str, ...]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Target:
        """The target that a report's culprit makes."""
        culprit = report.get("culprit") or {}
        families = tuple((culprit.get("family") or "").split("+"))
        return cls(report["verdict"], culprit.get("stage"), culprit.get("source"), families)

    def matches(self, probe: Probe) -> bool:
        """Whether the probe fails in this way.

        The verdict must be of the same class (wrong values, an error, metadata), and so must the rewrite that
        is suspected first.
        """
        if not probe.is_bug or probe.verdict.kind != Verdict(self.verdict).kind:
            return False
        if self.stage in GRAPH_STAGES:
            suspect = probe.suspect
            return (
                suspect is not None
                and suspect.stage == self.stage
                and suspect.source == self.source
                and family_of(suspect.rewrite) in self.families
            )
        return probe.suspect is None


GRAPH_STAGES = ("pre_grad", "joint_graph", "post_grad")


def probe(case: Case, device: torch.device, *, vetoes: Sequence[str] = (), screen: bool = False) -> Probe:
    """One compile and its replays: what a reduction asks of every candidate.

    Raises:
        CaseError: ``make()`` fails.
    """
    initialise_patterns(device)
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes), screen=screen))
    trial = experiments.trial()
    steps = steps_of(trial.ledger, ReplayCount())
    decision = _Decision(trial.judgement.verdict, "low")
    if trial.judgement.verdict is Verdict.ROUNDING and changes_meaning(steps):
        decision = _Decision(_wrong(trial.judgement), "low")
    suspects = suspects_of(steps, strides=shows_strides(trial))
    suspect = suspects[0].label if suspects else None
    if trial.observation.failure is not None:
        suspect = _failing_rewrite(trial) or suspect
    return Probe(decision.verdict, decision.verdict.is_bug, suspect)


def _failing_rewrite(trial: Trial) -> Label | None:
    failed = trial.ledger.failed_in
    return failed if failed is not None and not names_stage(failed) else None


# -- the verdict ------------------------------------------------------------------------------------


def _decide(experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> _Decision:
    """The judge's verdict, refined by what float64 and emulated casts say."""
    first = trial.judgement
    if first.casts_dropped:
        return _decide_casts(experiments, first)
    semantic = changes_meaning(steps)
    if first.verdict is Verdict.ROUNDING:
        if semantic:
            return _Decision(
                _wrong(first),
                first.confidence,
                f"within rounding natively, but {semantic[0].label.rewrite} moves the float64 result by "
                f"{semantic[0].float64:.1e} of its size",
                hidden=True,
            )
        if first.suspicious and _survives_float64(experiments):
            return _Decision(_wrong(first), "low", "small, but it survives when the program is compiled in float64")
        return _Decision(Verdict.ROUNDING, first.confidence)
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


def _wrong(judgement: Judgement) -> Verdict:
    differing = [c for c in judgement.comparisons if c.finding != "same"]
    gradients = differing and all(c.kind == "gradient" for c in differing)
    return Verdict.WRONG_GRADIENT if gradients else Verdict.MISCOMPILE


def _confirmed(experiments: Experiments, trial: Trial, decision: _Decision) -> _Decision:
    """A finding is believed after it came twice."""
    second = experiments.trial(replace(experiments.how, record=decision.hidden))
    if decision.hidden or second.judgement.verdict.is_bug:
        return decision
    if second.judgement.suspicious or same_bits(trial.observation, second.observation):
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
    failing = _failing_rewrite(trial)
    if failing is not None:
        suspect = Culprit.from_label(failing, confidence="low")
    elif suspects:
        suspect = Culprit.from_step(suspects[0], confidence="low")
    else:
        return None
    return suspect if (suspect.signature, verdict.kind) in known else None


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
