"""A decision on one trial, and the report on it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import Step
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.same import torch_same
from fuzzcompile.compiler.session import path_of
from fuzzcompile.compiler.unseen import Unseen, gathered, shown
from fuzzcompile.execution.observation import Observation
from fuzzcompile.facts import facts
from fuzzcompile.judging import promises
from fuzzcompile.judging.attribute import Attributor
from fuzzcompile.judging.claims import target_notes
from fuzzcompile.judging.counts import NO_REFERENCE, CoverageCount
from fuzzcompile.judging.decision import Decision, randomness
from fuzzcompile.judging.known import known_culprit, proved_again
from fuzzcompile.judging.report import Cost, Report
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.oracle.warned import changed_warnings
from fuzzcompile.trials.compiles import Experiments, Trial


@dataclass(frozen=True)
class Answer:
    """A decision on one trial, with all that a report on it takes.

    Attributes:
        experiments: the compiles of the case.
        trial: the judged one.
        steps: what its rewrites changed.
        decision: the verdict on it.
        count: the replays of graphs so far.
        started: value of ``time.perf_counter()`` when judging began.
        own_stream: the compile that draws the compiler's own random numbers, if that was looked at.
        survives: whether the bug shows in float64 too; None if that was not asked.
        both_ways: the ways of compiling that a target's device might take and that were tried beside the first.
        hit: the attribution to a known bug, if it is one.
    """

    experiments: Experiments
    trial: Trial
    steps: Sequence[Step]
    decision: Decision
    count: ReplayCount
    started: float
    own_stream: Trial | None = None
    survives: bool | None = None
    both_ways: tuple[str, ...] = ()
    hit: Attribution | None = None

    def report(self, attribution: Attribution | None = None) -> Report:
        """The report as it stands; without an attribution, one that names no culprit."""
        return _report(self, attribution or self._unproved())

    def attribution(self, deadline: float | None, *, thorough: bool = False) -> Attribution:
        """The culprit with its proof.

        Args:
            deadline: value of ``time.monotonic()`` after which no compile is begun.
            thorough: try every backend of PyTorch's issue form.
        """
        verdict, unproved = self.decision.verdict, self._unproved()
        if not verdict.is_bug or verdict is Verdict.NONDETERMINISTIC:
            return unproved
        if self.hit is not None:
            return self.hit
        attribution = Attributor(self._ablator(deadline), self.steps, thorough=thorough).run()
        return replace(attribution, changed_bits=unproved.changed_bits)

    def hit_of(self, known: Collection[tuple[str, str]], deadline: float | None) -> Attribution | None:
        """The attribution to a bug that is ``known``, if the first suspect is that and is proved again."""
        divergence = Divergence(self.experiments, self.trial, self.steps, self.count)
        suspect = known_culprit(divergence, self.decision.verdict, known)
        ablator = self._ablator(deadline)
        hit = proved_again(ablator, suspect) if suspect is not None else None
        return None if hit is None else replace(self._unproved(), culprit=hit, known=True, ablations=ablator.ablations)

    def _ablator(self, deadline: float | None) -> Ablator:
        return Ablator(self.experiments, self.trial, self.count, self.decision.evidence, deadline)

    def _unproved(self) -> Attribution:
        return Attribution(changed_bits=_changed_bits(self.steps))


def _report(answer: Answer, attribution: Attribution) -> Report:
    experiments, trial, steps, decision = answer.experiments, answer.trial, answer.steps, answer.decision
    unseen = (*dict.fromkeys((*trial.ledger.unseen, *gathered())),)
    seconds = time.perf_counter() - answer.started
    return Report(
        case=experiments.case.name,
        torch=str(torch.__version__),  # a plain string: a process without torch reads it
        device=str(experiments.device),
        verdict=decision.verdict,
        confidence=_confidence(decision, attribution, unseen),
        detail=decision.detail,
        comparisons=_with_torch_same(experiments, trial),
        eager_deterministic=experiments.deterministic,
        float64_step=_largest_step(steps, decision),
        failure=trial.observation.failure,
        attribution=attribution,
        coverage=_coverage(trial, steps),
        against=experiments.against,
        path=path_of(experiments.case.settings, trial.how),
        threads=torch.get_num_threads(),
        graphs=len(trial.ledger.frames) or trial.ledger.graphs,
        # Of a program that was never captured, dynamo lists errors and no breaks.
        graph_breaks=trial.ledger.graph_breaks if trial.ledger.graphs else (),
        warnings=changed_warnings(experiments.runs.eager, trial.observation),
        cost=Cost(experiments.compiles, answer.count.replays, seconds, experiments.screens),
        survives_float64=answer.survives,
        promise=promises.broken(experiments, trial, decision.verdict),
        randomness=randomness(experiments, trial, own_stream=answer.own_stream),
        gives=_gives(trial.observation) if decision.verdict is Verdict.ACCEPTS_INVALID else None,
        notes=(
            *experiments.case.notes,
            *_version_note(),
            *_reference_note(experiments),
            *shown(unseen),
            *trial.ledger.interpreted.notes,
        ),
        target=target_notes(experiments, trial, answer.both_ways),
    )


def _gives(observation: Observation) -> str:
    """Dtypes and shapes of what a program returns, or the values that are no tensors."""
    outputs = [value.value for value in observation.values if value.kind == "output"]
    return ", ".join(
        f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else repr(value)
        for value in outputs
    )


def _version_note() -> tuple[str, ...]:
    """Note that another version's facts stand in for an installed torch that has none of its own."""
    note = facts().note
    return () if note is None else (note,)


def _reference_note(experiments: Experiments) -> tuple[str, ...]:
    """Note the reason for a missing float64 run, if eager itself runs."""
    failure = experiments.runs.reference.failure
    if failure is None or experiments.runs.eager.failure is not None:
        return ()
    return (f"{NO_REFERENCE}, compared with eager alone: it raises {failure}",)


def _largest_step(steps: Sequence[Step], decision: Decision) -> float | None:
    """The largest change of a float64 result by a rewrite, or by a decomposition where that decided."""
    moves = [step.float64 for step in steps if step.float64 is not None and not step.random]
    return max([*moves, *([decision.boundary.step] if decision.boundary is not None else [])], default=None)


def _confidence(decision: Decision, attribution: Attribution, unseen: Sequence[Unseen]) -> str:
    """``low`` if the culprit is not proved, or if something went unseen that might have changed the answer."""
    culprit = attribution.culprit
    if not all(missed.harmless for missed in unseen):
        return "low"
    if culprit is not None and (culprit.confidence == "low" or not culprit.necessary):
        return "low"
    return decision.confidence


def _changed_bits(steps: Sequence[Step]) -> list[Culprit]:
    return [Culprit.from_step(step) for step in steps if step.changed_bits and not step.random]


def _with_torch_same(experiments: Experiments, trial: Trial) -> tuple[Comparison, ...]:
    if not trial.judgement.comparisons or experiments.runs.reference.failure:
        return trial.judgement.comparisons
    runs = (experiments.baseline, trial.observation, experiments.runs.reference)
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


def _coverage(trial: Trial, steps: Sequence[Step]) -> tuple[CoverageCount, ...]:
    rewrites, reached = trial.ledger.coverage.items(), trial.ledger.reached.items()
    largest: dict[Label, float] = {}
    for step in steps:
        if step.float64 is not None and not step.random:
            largest[step.label] = max(step.float64, largest.get(step.label, 0.0))
    return (
        *(
            CoverageCount(rule.stage, rule.pass_name, rule.rewrite, outcome, n, largest.get(rule))
            for (rule, outcome), n in rewrites
        ),
        *(CoverageCount(part.stage, None, part.name, part.outcome, n) for part, n in reached),
    )
