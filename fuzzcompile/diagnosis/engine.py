"""Triage: judge one case, attribute the fault, and report on it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fuzzcompile.compiler.compile_changes import SETTINGS, Backend, CompilePath, InductorSettings, Veto
from fuzzcompile.compiler.graph_replay import GraphReplayer, list_random_calls
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, find_path
from fuzzcompile.compiler.torch_config import get_setting
from fuzzcompile.compiler.watch.conformance import probe_unknown_torch
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.compiler.watch.unseen import Unseen, format_unseen, gather_unseen, get_gathered
from fuzzcompile.diagnosis import decision as promises
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.diagnosis.attribution.steps import Step, measure_steps
from fuzzcompile.diagnosis.attributor import attribute, find_first_rewrite, find_known_culprit, prove_again
from fuzzcompile.diagnosis.decision import (
    Decision,
    compare_with_torch_same,
    confirm,
    decide,
    describe_float64_fault,
    describe_randomness,
    doubt_layout,
    find_survival,
    iter_other_ways,
    limit_claims,
    make_target_notes,
    parts_where_eager_is_finite,
    settle,
)
from fuzzcompile.diagnosis.eager_judgement import judge_eager
from fuzzcompile.diagnosis.refusals import (
    CannotJudge,
    refuse_lack_of_cpu,
    refuse_lasting_state,
    refuse_unfit,
    refuse_unsupported,
)
from fuzzcompile.diagnosis.sharding_judgement import attribute_sharding_fault, judge_sharding
from fuzzcompile.diagnosis.stages.own_choices import measure_against_updates
from fuzzcompile.diagnosis.stale_calls import StaleCall, find_stale_call
from fuzzcompile.diagnosis.triage_report import FUNCTORCH, Cost, TriageReport, find_rewrite_fate, make_error_maps
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.trials.stored_graphs import NOTHING_RESTORED
from fuzzcompile.diagnosis.wrong_side import SideVerdict, attribute_eager_fault, find_wrong_side
from fuzzcompile.model.compiler_toggles import NEUTRAL
from fuzzcompile.model.contract import CACHED, COMPILE, EAGER, EXPORTED
from fuzzcompile.model.errors import MachineUnfit
from fuzzcompile.model.facts import facts
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.stages import JOINT_GRAPH
from fuzzcompile.model.verdicts import AGREEING, NO_REFERENCE, CoverageCount, Verdict
from fuzzcompile.run.case import Case, bound_inputs, keep_output
from fuzzcompile.run.device import find_gpu_error
from fuzzcompile.run.observation import Observation


class TriageProgress:
    """Hears how far a triage has come."""

    def note_eager(self) -> None:
        """Eager mode has finished: a crash or time-out from now on is the compiler's."""

    def note_verdict(self, report: TriageReport) -> None:
        """There is a verdict; nothing is attributed yet."""

    def note_ledger(self, ledger: Ledger) -> None:
        """The judged compile is over, and this is what it did to its graphs; nothing is attributed yet."""


@dataclass(frozen=True)
class JudgedTrial:
    """A decision on one trial of a case, with all that a report on it takes."""

    experiments: Experiments
    trial: Trial
    spent: Spending
    steps: Sequence[Step]  # what the trial's rewrites changed
    decision: Decision
    own_stream: Trial | None = None  # the compile that draws the compiler's own random numbers, if that was looked at
    survives: bool | None = None  # whether the bug shows in float64 too; None if that was not asked
    both_ways: tuple[str, ...] = ()  # ways that a target's device might compile, tried beside the first
    hit: Attribution | None = None  # the attribution to a known bug, if it is one
    side: SideVerdict | None = None  # the side that is wrong, of a verdict on values
    stale: StaleCall | None = None  # the call that ran a stale graph, if one did

    @classmethod
    def decide(
        cls, experiments: Experiments, trial: Trial, spent: Spending, known: Collection[tuple[str, str]] = ()
    ) -> JudgedTrial:
        """The decision on one compile, and whether that is a hit of a bug that is ``known``."""
        steps = measure_steps(trial.ledger)
        experiments, trial = settle(experiments, trial, steps)
        decision = limit_claims(experiments, trial, decide(experiments, trial, steps))
        answer = cls(experiments, trial, spent, steps, decision)
        return replace(answer, hit=answer._find_hit(known))

    def confirm(self) -> JudgedTrial:
        """The answer with its bug confirmed by a second compile, unless it is a hit, whose proof confirms it."""
        experiments, trial, decision = self.experiments, self.trial, self.decision
        if decision.verdict.is_bug and self.hit is None:
            decision = confirm(experiments, trial, decision)
        return replace(self, decision=decision, survives=find_survival(experiments, trial, decision, ask=False))

    def report(self, attribution: Attribution | None = None) -> TriageReport:
        """The report as it stands; without an attribution, one that names no culprit."""
        experiments, trial, steps, decision = self.experiments, self.trial, self.steps, self.decision
        # A further run of eager mode, which a report that is only kept in case the worker is lost does without.
        asked = attribution is not None and decision.verdict is Verdict.METADATA
        attribution = attribution or self._make_unproved()
        unseen = self._list_unseen()
        seconds, counts = time.perf_counter() - self.spent.started, experiments.counts
        # Changes of a float64 result by a rewrite, or by a decomposition where that decided.
        moves = [step.float64 for step in steps if step.float64 is not None and not step.random]
        moves += [] if decision.boundary is None else [decision.boundary.step]
        outputs = [value.value for value in trial.observation.values if value.kind == "output"]
        gives = ", ".join(map(_describe_output, outputs)) if decision.verdict is Verdict.ACCEPTS_INVALID else None
        return TriageReport(
            case=experiments.case.name,
            torch=str(torch.__version__),  # a plain string: a process without torch reads it
            device=str(experiments.device),
            verdict=decision.verdict,
            confidence=_decide_confidence(decision, attribution, unseen),
            detail=decision.detail,
            wrong=None if self.side is None else self.side.wrong,
            comparisons=compare_with_torch_same(experiments, trial),
            eager_deterministic=experiments.is_deterministic,
            float64_step=max(moves, default=None),
            failure=trial.observation.failure,
            attribution=attribution,
            coverage=tuple(_count_coverage(trial, steps)),
            against=experiments.against,
            path=find_path(experiments.case.settings, trial.how),
            threads=torch.get_num_threads(),
            graphs=sum(not frame.of_backend for frame in trial.ledger.frames) or trial.ledger.graphs,
            # Of a program that was never captured, dynamo lists errors and no breaks.
            graph_breaks=trial.ledger.graph_breaks if trial.ledger.graphs else (),
            warnings=compare_warnings(experiments.runs.eager, trial.observation),
            cost=Cost(counts.compiles, GraphReplayer.replays - self.spent.replays_before, seconds, counts.screens),
            survives_float64=self.survives,
            promise=promises.find_broken_promise(experiments, trial, decision.verdict),
            layout_doubt=doubt_layout(experiments, trial) if asked else None,
            opt_in=tuple(prefix + key for _, key, prefix in _list_opt_ins(experiments)),
            randomness=describe_randomness(experiments, trial, own_stream=self.own_stream),
            gives=gives,
            notes=tuple(self._iter_notes(attribution, unseen)),
            target=make_target_notes(experiments, trial, self.both_ways),
        )

    def _list_unseen(self) -> Sequence[Unseen]:
        """Missed observations; a replay that raises what eager mode raises has shown all that there is to be seen."""
        unseen = dict.fromkeys((*self.trial.ledger.unseen, *get_gathered()))
        failure = self.experiments.runs.eager.failure
        return [missed for missed in unseen if failure is None or not missed.why.startswith(str(failure))]

    def _iter_notes(self, attribution: Attribution, unseen: Sequence[Unseen]) -> Iterator[str]:
        experiments, trial = self.experiments, self.trial
        yield from experiments.case.notes
        if facts().note is not None:  # another version's facts stand in for an installed torch that has none of its own
            yield str(facts().note)
        failure = experiments.runs.reference.failure
        if failure is not None and experiments.runs.eager.failure is None:
            yield f"{NO_REFERENCE}, compared with eager alone: it raises {failure}"
        other_bug = describe_float64_fault(experiments, trial.judgement)
        side_note = "" if self.side is None else self.side.note
        yield from filter(None, (trial.judgement.note, side_note, trial.parted, other_bug))
        yield from format_unseen(unseen)
        if attribution.cut_off:
            yield _CUT_OFF
        yield from trial.ledger.interpreted.notes

    def name_first_suspect(self) -> Attribution:
        """The rewrite under way where the compiler raised, before anything is proved of it."""
        suspect = find_first_rewrite(self._make_ablator()) if self.decision.verdict.is_bug else None
        return replace(self._make_unproved(), culprit=suspect)

    def attribute(self, *, thorough: bool) -> Attribution:
        """The culprit with its proof, as far as the time suffices."""
        verdict, unproved = self.decision.verdict, self._make_unproved()
        if self.stale is not None:
            return self.stale.attribution
        if not verdict.is_bug:
            return unproved
        if self.hit is not None:
            return self.hit
        if self.side is not None and self.side.sharding is not None:
            return attribute_sharding_fault(self.side.sharding, unproved, proved=self.side.proved)
        if self.side is not None and verdict is Verdict.EAGER_WRONG:
            return attribute_eager_fault(self.experiments, self.trial, self.side, unproved)
        unsteady = verdict is Verdict.NONDETERMINISTIC
        judged = None if unsteady else self._judge_part()
        part = None if judged is None else judged._make_ablator()
        attribution = attribute(self._make_ablator(), thorough=thorough, unsteady=unsteady, part=part)
        return replace(attribution, changed_bits=unproved.changed_bits)

    def _judge_part(self) -> JudgedTrial | None:
        """The same verdict on the one of several returned values that shows it; None if none shows it alone.

        A function that returns several values is often several programs, and each compile of one alone costs less.
        """
        experiments, wrong = self.experiments, self.trial.judgement.comparisons
        number = experiments.runs.find_value([each.name for each in wrong if each.finding not in AGREEING])
        if number is None or self.spent.is_late or find_path(experiments.case.settings, self.trial.how) != COMPILE:
            return None
        part = experiments.on_part(keep_output(experiments.case, number))
        part.run_eager()
        if part.runs.eager.failure:
            return None
        answer = JudgedTrial.decide(part, part.trial(), self.spent)
        return answer if answer.decision.verdict is self.decision.verdict else None

    def _find_hit(self, known: Collection[tuple[str, str]]) -> Attribution | None:
        ablator = self._make_ablator()
        suspect = find_known_culprit(ablator, self.decision.verdict, known)
        hit = None if suspect is None else prove_again(ablator, suspect)
        if hit is None:
            return None
        return replace(self._make_unproved(), culprit=hit, known=True, ablations=ablator.ablations)

    def take_side(self) -> JudgedTrial:
        """The answer with the side that is wrong: a verdict on eager mode where that is."""
        side = None if self.stale is not None else find_wrong_side(self.experiments, self.trial, self.decision)
        return self if side is None else self._on_side(side)

    def hold_against_wholes(self) -> JudgedTrial:
        """The answer; or that eager mode is wrong, where an operator contradicts itself on whole ``DTensor``s."""
        if self.stale is not None or self.hit is not None:
            return self
        judged = judge_sharding(self.experiments, self.trial, self.decision)
        if judged is None:
            return self
        side, trial = judged
        decision = Decision(Verdict.EAGER_WRONG, "high" if side.proved else "low", side.why)
        return replace(self, side=side, trial=trial, decision=decision)

    def look_for_stale_calls(self) -> JudgedTrial:
        """The answer; or that a graph is stale, where calls that are compiled anew are right."""
        stale = None if self.hit is not None else find_stale_call(self.experiments, self.decision)
        return self if stale is None else self.with_stale_call(stale)

    def with_stale_call(self, stale: StaleCall) -> JudgedTrial:
        """The answer that a call ran a stale graph; where that is a bug, it is the compiled program's."""
        side = SideVerdict("compiled", stale.decision.detail) if stale.decision.verdict.is_bug else None
        return replace(self, stale=stale, decision=stale.decision, side=side)

    def weigh_culprit(self, culprit: Culprit | None) -> JudgedTrial:
        """The answer, its side weighed once more by what is accused (`SideVerdict.weigh_culprit`)."""
        side = None if self.side is None else self.side.weigh_culprit(culprit)
        return self if side is None or side is self.side else self._on_side(side)

    def allow_design(self, culprit: Culprit | None) -> JudgedTrial:
        """The answer; or no bug, where the culprit is a branch that compiled programs are meant to take."""
        why = None if culprit is None else culprit.details.get("design")
        if culprit is None or why is None or self.stale is not None:
            return self
        said = f"compiled programs take another branch ({culprit.source}:{culprit.line}) by design: {why}"
        if largest := measure_against_updates(self.experiments, self.trial.judgement.suspicious):
            said += f"; what the program changes in place differs by at most {largest:.1e} of that change"
        if self.decision.verdict is Verdict.ACCEPTS_INVALID:
            said += f"; {self.decision.detail}"
        decision = replace(self.decision, verdict=Verdict.BY_DESIGN, confidence="high", detail=said)
        return replace(self, side=None, decision=decision)

    def _on_side(self, side: SideVerdict) -> JudgedTrial:
        decision = self.decision
        # Of an unsteady kernel nothing else can be said, though the compiled program may call it too.
        unsteady = side.call is not None and side.call.opinion.by == "surroundings"
        if side.wrong == "eager" or unsteady:
            confidence = decision.confidence if side.proved or side.call is not None else "low"
            decision = replace(decision, verdict=Verdict.EAGER_WRONG, confidence=confidence, detail=side.why)
        elif side.wrong != "compiled":
            why = f"which side is wrong is undecided: {side.why}" if side.wrong == "undecided" else side.why
            return replace(self, side=side, decision=replace(decision, confidence="low")).with_detail(why)
        return replace(self, side=side, decision=decision)

    def with_detail(self, clause: str) -> JudgedTrial:
        """The same, with a further clause in the detail of the decision."""
        detail = "; ".join(part for part in (self.decision.detail, clause) if part)
        return replace(self, decision=replace(self.decision, detail=detail))

    def _make_ablator(self) -> Ablator:
        return Ablator(self.experiments, self.trial, self.steps, self.spent.deadline, self.decision.evidence)

    def _make_unproved(self) -> Attribution:
        moved = (step for step in self.steps if step.changed_bits and not step.random)
        return Attribution(changed_bits=[Culprit.from_step(step) for step in moved])


@dataclass(frozen=True)
class Spending:
    """When a triage began (``time.perf_counter()``), and the replays of graphs that this process had made by then.

    After its ``deadline``, a value of ``time.monotonic()``, attribution begins no further compile.
    """

    deadline: float | None = None
    started: float = field(default_factory=time.perf_counter)
    replays_before: int = field(default_factory=lambda: GraphReplayer.replays)

    @property
    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


_CUT_OFF = "the time was over before the culprit could be looked for everywhere; a longer --timeout leaves more of it"


def compare_warnings(eager: Observation, compiled: Observation) -> tuple[str, ...]:
    """The warnings of eager alone, then those of compiled alone, each by its category and text."""
    return (
        *(f"only eager: {text}" for text in eager.warnings if text not in compiled.warnings),
        *(f"only compiled: {text}" for text in compiled.warnings if text not in eager.warnings),
    )


def _describe_output(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _decide_confidence(decision: Decision, attribution: Attribution, unseen: Sequence[Unseen]) -> str:
    """``low`` if the culprit is not proved, or if something went unseen that might have changed the answer."""
    culprit = attribution.culprit
    if attribution.cut_off or not all(missed.harmless for missed in unseen):
        return "low"
    if culprit is not None and (culprit.confidence == "low" or not culprit.necessary):
        return "low"
    return decision.confidence


def _count_coverage(trial: Trial, steps: Sequence[Step]) -> Iterator[CoverageCount]:
    largest: dict[Label, float] = {}
    for step in steps:
        if step.float64 is not None and not step.random:
            largest[step.label] = max(step.float64, largest.get(step.label, 0.0))
    for (rule, outcome), count in trial.ledger.coverage.items():
        yield CoverageCount(rule.stage, rule.pass_name, rule.rewrite, outcome, count, largest.get(rule))
    for part, count in trial.ledger.reached.items():
        yield CoverageCount(part.stage, None, part.name, part.outcome, count)


@gather_unseen()
def triage(
    case: Case,
    device: torch.device,
    task: JudgeTask | None = None,
    *,
    deadline: float | None = None,
    progress: TriageProgress | None = None,
) -> TriageReport:
    """Judge a loaded case on a device, in this process; of the task, where the case lies and its limits are not read.

    After ``deadline``, a value of ``time.monotonic()``, attribution begins no further compile.

    Raises:
        CaseError, CannotJudge: ``make()`` fails; nothing is compiled as the case demands, or the machine lacks a part.
    """
    task, progress, spent = task or JudgeTask(), progress or TriageProgress(), Spending(deadline)
    initialise_patterns(device)  # both before the case can change the process
    probe_unknown_torch()
    how = Compilation((Veto(task.vetoes),))
    experiments = Experiments(case, device, how, against=task.against, tolerances=task.tolerances)
    if case.settings.path == EAGER:
        return _triage_eager(experiments, spent, progress)
    screens = task.screen and case.settings.path != CACHED  # stored graphs are code
    looking = _run_eager(experiments, quick=screens)
    progress.note_eager()
    early = _screen(looking, task.known, spent) if screens else None
    if early is None:
        trial = experiments.trial()
        if case.settings.path == CACHED and not trial.ledger.restored:
            trial.ledger.unseen.note(NOTHING_RESTORED)
        refuse_unsupported(experiments, trial)
        refuse_unfit(case, trial)
        refuse_lasting_state(experiments, trial)
        lost = find_gpu_error(device) if trial.observation.failure is not None else None
        if lost is not None:
            said = f"eager runs; of the compiled program the GPU says {lost!r}, and does nothing more for that process"
            unasked = Decision(trial.judgement.verdict, "low", f"{said}: no culprit was looked for")
            early = JudgedTrial(experiments, trial, spent, (), unasked).report()
    if early is not None:
        progress.note_verdict(early)
        return early
    answer = _drop_settings(JudgedTrial.decide(experiments, trial, spent, task.known).confirm(), task.known)
    answer = _weigh_overflow(answer)
    answer = _judge_baseline(_try_both_ways(_refuse_as_users_do(answer))).look_for_stale_calls()
    answer = answer.take_side().hold_against_wholes()
    progress.note_verdict(answer.report())
    if task.thorough and not spent.is_late:
        answer = _look_again(answer)
        progress.note_verdict(answer.report())
    progress.note_ledger(answer.trial.ledger)
    if answer.trial.observation.failure is not None:  # the next compile may take this process down
        progress.note_verdict(answer.report(answer.name_first_suspect()))
    attribution = answer.attribute(thorough=task.thorough)
    answer = answer.weigh_culprit(attribution.culprit).allow_design(attribution.culprit)
    report = answer.report(attribution)
    # A rewrite that is off is tried as asked, not the other way judged.
    fates = tuple(find_rewrite_fate(experiments, answer.trial, answer.steps, name) for name in task.suspects)
    maps = make_error_maps(answer.experiments, answer.trial) if task.error_maps else {}
    return replace(report, suspects=fates, error_maps=maps)


def _triage_eager(experiments: Experiments, spent: Spending, progress: TriageProgress) -> TriageReport:
    """The report on a case that eager mode alone is judged on."""
    experiments.run_eager()
    progress.note_eager()
    judged = judge_eager(experiments)
    answer = JudgedTrial(experiments, judged.trial, spent, (), judged.decision, side=judged.side)
    report = answer.report(answer.attribute(thorough=False))
    progress.note_verdict(report)
    return report


def _run_eager(experiments: Experiments, *, quick: bool) -> Experiments:
    """Run the case eagerly, and refuse it where its state lasts or the CPU lacks what it needs.

    Returns:
        The experiments that looked: those given, or a quick look at a compile without code generation.
    """
    looking = experiments
    if quick:
        if not experiments.runs.eager.failure:
            _ = experiments.runs.reference  # run once for both
        looking = experiments.under(replace(experiments.how, screen=True), quick=True)
    looking.run_eager()
    if experiments.device.type == "cuda":
        _ = experiments.is_deterministic  # nothing can be read from a GPU that the compiled program has lost
    refuse_lasting_state(experiments)
    refuse_lack_of_cpu(experiments)
    return looking


def _screen(looking: Experiments, known: Collection[tuple[str, str]], spent: Spending) -> TriageReport | None:
    """The report of a compile without code generation; None if it shows a bug, which a full compile has to show.

    A hit of what is known needs no full compile: a second screen, without the culprit, proves it.
    """
    trial = looking.trial()
    if trial.observation.failure is None:
        refuse_unfit(looking.case, trial)
    answer = JudgedTrial.decide(looking, trial, spent, known)
    hit = answer.hit
    if answer.decision.verdict.is_bug and hit is None:
        return None
    answer = answer.with_detail("screened: every rewrite, no generated code")
    if hit is None:
        answer = _try_both_ways(answer)
        if answer.decision.verdict.is_bug:
            return None
    return replace(answer.report(hit), screened=True)


def _drop_settings(answer: JudgedTrial, known: Collection[tuple[str, str]]) -> JudgedTrial:
    """The answer with what is off by default off, where that shows the same verdict: more users have that bug.

    A promise that a setting makes is broken under it alone.
    """
    experiments, verdict = answer.experiments, answer.decision.verdict
    opt_ins = _list_opt_ins(experiments)
    asked = verdict.is_bug and answer.hit is None and not answer.spent.is_late
    if not opt_ins or not asked or promises.find_broken_promise(experiments, answer.trial, verdict) is not None:
        return answer
    defaults = [SETTINGS[config]({key: get_setting(key, config)}) for config, key, _ in opt_ins]
    plain = experiments.under(experiments.how.under(*defaults))
    second = JudgedTrial.decide(plain, plain.trial(), answer.spent, known)
    return second.confirm() if second.decision.verdict is verdict else answer


_OVERFLOWS = (
    "values near the largest number overflow in another order than eager's; gone where their squares are finite"
)


def _weigh_overflow(answer: JudgedTrial) -> JudgedTrial:
    """The answer; or that which of huge values overflows is a matter of order, where eager's own results are lost."""
    experiments, trial = answer.experiments, answer.trial
    if answer.decision.verdict is not Verdict.NONFINITE or answer.hit is not None or answer.spent.is_late:
        return answer
    bounded = None if parts_where_eager_is_finite(experiments, trial) else bound_inputs(experiments.case)
    if bounded is None:
        return answer
    part = experiments.on_part(bounded)
    part.run_eager()
    if part.runs.eager.failure is not None:
        return answer
    second = JudgedTrial.decide(part, part.trial(), answer.spent)
    is_bug = second.decision.verdict.is_bug
    return answer if is_bug else replace(answer, decision=Decision(Verdict.UNSTABLE, "low", _OVERFLOWS))


def _try_both_ways(answer: JudgedTrial) -> JudgedTrial:
    """The answer, or that on a way of compiling which a target's device might take, if only that is a bug."""
    tried: tuple[str, ...] = ()
    for question, how in iter_other_ways(answer.experiments, answer.trial):
        if answer.decision.verdict.is_bug or answer.spent.is_late:
            break
        under = answer.experiments.under(how)
        trial = under.trial()
        try:
            refuse_unfit(under.case, trial)
        except (CannotJudge, MachineUnfit):  # the report says that this way was not tried
            continue
        second = JudgedTrial.decide(under, trial, answer.spent).confirm()
        tried = (*tried, question)
        if second.decision.verdict.is_bug:
            answer = second.with_detail(f"{question}: the other way")
    return replace(answer, both_ways=tried)


def _refuse_as_users_do(answer: JudgedTrial) -> JudgedTrial:
    """The answer; or that a program which eager mode refuses runs with the compiler's own random numbers.

    Values are compared with eager's numbers, which few users ask for: there, the compiler calls eager's kernels, and so
    their checks.
    """
    experiments, ledger = answer.experiments, answer.trial.ledger
    if answer.decision.verdict is not Verdict.INVALID or not experiments.how.follows_eager_numbers:
        return answer
    records = (frame.find_record(JOINT_GRAPH) for frame in ledger.frames)
    if not any(record is not None and any(map(list_random_calls, record.snapshots)) for record in records):
        return answer
    unaligned = experiments.under(experiments.how.under(InductorSettings({"fallback_random": False})))
    second = JudgedTrial.decide(unaligned, unaligned.trial(), answer.spent)
    if not second.decision.verdict.is_bug:
        return answer
    return second.confirm().with_detail("with the compiler's own random numbers (fallback_random=False, the default)")


def _judge_baseline(answer: JudgedTrial) -> JudgedTrial:
    """The answer; or that on the exported program which compiled was compared with, if it is that which is wrong."""
    experiments = answer.experiments
    if experiments.against not in EXPORTED or not experiments.baseline_judgement.verdict.is_bug:
        return answer
    how = experiments.how.without(Backend).under(CompilePath(experiments.against))
    exported = Experiments(experiments.case, experiments.device, how, tolerances=experiments.tolerances)
    exported.run_eager()
    second = JudgedTrial.decide(exported, exported.trial(), answer.spent).confirm()
    return second if second.decision.verdict.is_bug else answer


def _look_again(answer: JudgedTrial) -> JudgedTrial:
    """The answer with further evidence: the compiler's own random stream, and the program compiled in float64."""
    experiments, trial = answer.experiments, answer.trial
    benign = not answer.decision.verdict.is_bug and trial.observation.failure is None
    if benign and experiments.runs.draws:
        # Other rewrites fire where the compiler need not follow eager's random numbers.
        unaligned = experiments.under(experiments.how.under(InductorSettings({"fallback_random": False})))
        second = JudgedTrial.decide(unaligned, unaligned.trial(), answer.spent).confirm()
        answer = replace(second if second.decision.verdict.is_bug else answer, own_stream=second.trial)
    # Both sides may be wrong alike: in float64 they differ as little.
    ask = not answer.spent.is_late and (answer.side is None or answer.side.sharding is None)
    return replace(answer, survives=find_survival(answer.experiments, answer.trial, answer.decision, ask=ask))


def _list_opt_ins(experiments: Experiments) -> list[tuple[str, str, str]]:
    """The settings that the judged compile changes of Inductor and of AOTAutograd: config, entry and prefix of a name.

    Passes that a case brings do not count.
    """
    settings = experiments.case.settings
    configs = (("inductor", settings.own_config, ""), ("functorch", settings.functorch, FUNCTORCH))
    changes = {config: experiments.how.get(kind) for config, kind in SETTINGS.items()}
    changed = {config: {} if change is None else change.entries for config, change in changes.items()}
    return [
        (config, key, prefix)
        for config, entries, prefix in configs
        for key, value in {**entries, **changed[config]}.items()
        if key not in NEUTRAL and isinstance(value, bool | int | float | str | Mapping)
        if value != get_setting(key, config)
    ]
