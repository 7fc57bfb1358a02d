"""Triage: judge one case, and attribute what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import steps_of
from fuzzcompile.case import Case
from fuzzcompile.compiler.conformance import probe_unknown_torch
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.unseen import gathering
from fuzzcompile.errors import MachineUnfit
from fuzzcompile.execution.lost_gpu import lost_gpu
from fuzzcompile.judging.answer import Answer
from fuzzcompile.judging.asked import ask
from fuzzcompile.judging.claims import claimed, otherwise
from fuzzcompile.judging.decision import Decision, confirmed, decide, survival
from fuzzcompile.judging.error_maps import error_maps_of
from fuzzcompile.judging.refusals import (
    CannotJudge,
    refuse_lack_of_cpu,
    refuse_lasting_state,
    refuse_unfit,
    refuse_unsupported,
)
from fuzzcompile.judging.report import Report
from fuzzcompile.sides import AOTI, EXPORT
from fuzzcompile.tolerances import Tolerances
from fuzzcompile.trials.compiles import Experiments, Trial


@gathering()
def triage(
    case: Case,
    device: torch.device,
    *,
    against: str = "eager",
    tolerances: Tolerances | None = None,
    vetoes: Sequence[str] = (),
    known: Collection[tuple[str, str]] = (),
    deadline: float | None = None,
    thorough: bool = False,
    screen: bool = False,
    suspects: Sequence[str] = (),
    error_maps: bool = False,
    on_eager: Callable[[], None] = lambda: None,
    on_verdict: Callable[[Report], None] = lambda report: None,
    on_ledger: Callable[[Ledger], None] = lambda ledger: None,
) -> Report:
    """Judge ``case`` on ``device``, in this process.

    Args:
        case: the loaded case.
        device: where to run it.
        against: what compiled is compared with (:class:`~fuzzcompile.trials.compiles.Experiments`).
        tolerances: how far the two may be apart; by default the table that comes with fuzzcompile.
        vetoes: rewrites that are refused throughout, by name.
        known: signatures, each with the kind of its verdict, that need no further proof: a bug whose first
            suspect has one of them, causes apart, is a hit of it if a screen without its family is right.
        deadline: value of ``time.monotonic()`` after which attribution begins no further compile.
        thorough: spend further compiles on evidence: the program in float64 where values are apart, the compiler's own
            random stream where it draws random numbers, and, of a bug, what each backend shows.
        screen: look at the case without generating code first, and in full only if that shows a bug that is not
            ``known``. Otherwise the report is that of the screen (``screened``): all graphs are checked, and no kernel.
        suspects: names of rewrites whose fate the report is to state (:mod:`~fuzzcompile.judging.asked`).
        error_maps: also say where in the outputs the errors are.
        on_eager: called once all eager runs are done, before anything is compiled: a crash or time-out after
            that is the compiler's.
        on_verdict: called with the report as soon as there is a verdict, and again with further evidence, before
            anything is attributed.
        on_ledger: called with what the judged compile did to its graphs, before anything is attributed.

    Raises:
        CaseError: ``make()`` fails.
        CannotJudge: the case asks for ``FULLGRAPH`` and cannot be captured in one graph, nothing of it is
            compiled, or the machine lacks what compiling needs.
    """
    started = time.perf_counter()
    initialise_patterns(device)
    probe_unknown_torch()
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes)), against=against, tolerances=tolerances)
    looking = _quick(experiments) if screen else experiments
    looking.run_eager()
    if device.type == "cuda":
        _ = experiments.deterministic  # nothing can be read from a GPU that the compiled program has lost
    refuse_lasting_state(experiments)
    refuse_lack_of_cpu(experiments)
    on_eager()
    if screen:
        report = _screened(looking, known, started, deadline)
        if report is not None:
            on_verdict(report)
            return report
    trial = experiments.trial()
    refuse_unsupported(experiments, trial)
    refuse_unfit(case, trial)
    lost = lost_gpu(device) if trial.observation.failure is not None else None
    if lost is not None:
        report = _without_gpu(experiments, trial, lost, started)
        on_verdict(report)
        return report
    answer = _decided_both_ways(_decided(experiments, trial, ReplayCount(), started, known, deadline), deadline)
    answer = _of_baseline(answer)
    on_verdict(answer.report())
    if thorough and not _late(deadline):
        answer = _looked_at_again(answer, deadline)
        on_verdict(answer.report())
    on_ledger(answer.trial.ledger)
    report = answer.report(answer.attribution(deadline, thorough=thorough))
    if error_maps:
        report = replace(report, error_maps=error_maps_of(answer.experiments, answer.trial))
    return replace(report, asked=tuple(ask(experiments, answer.trial, answer.steps, name) for name in suspects))


def _without_gpu(experiments: Experiments, trial: Trial, why: str, started: float) -> Report:
    """The report on a compiled program that costs the process its GPU: no run or compile can follow."""
    detail = f"eager runs; of the compiled program the GPU says {why!r}, and does nothing more for that process"
    decision = Decision(trial.judgement.verdict, "low", f"{detail}: no culprit was looked for")
    return Answer(experiments, trial, (), decision, ReplayCount(), started).report()


def _quick(experiments: Experiments) -> Experiments:
    """The same experiments for a compile without code generation; what eager and float64 give is run once for both."""
    if not experiments.runs.eager.failure:
        _ = experiments.runs.reference
    return experiments.under(replace(experiments.how, screen=True), quick=True)


def _screened(
    looking: Experiments, known: Collection[tuple[str, str]], started: float, deadline: float | None
) -> Report | None:
    """The report of a compile without code generation; None if it shows a bug, which a full compile has to show.

    A hit of what is known needs no full compile: a second screen, without the culprit, proves it.
    """
    trial = looking.trial()
    if trial.observation.failure is None:
        refuse_unfit(looking.case, trial)
    count = ReplayCount()
    steps = steps_of(trial.ledger, count)
    decision = claimed(looking, decide(looking, trial, steps))
    answer = Answer(looking, trial, steps, decision, count, started)
    hit = answer.hit_of(known, deadline)
    if decision.verdict.is_bug and hit is None:
        return None
    detail = "; ".join(part for part in (decision.detail, "screened: every rewrite, no generated code") if part)
    answer = replace(answer, decision=replace(decision, detail=detail))
    if hit is None:
        answer = _decided_both_ways(answer, None)
        if answer.decision.verdict.is_bug:
            return None
    return replace(answer.report(hit), screened=True)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _decided(
    experiments: Experiments,
    trial: Trial,
    count: ReplayCount,
    started: float,
    known: Collection[tuple[str, str]] = (),
    deadline: float | None = None,
) -> Answer:
    """The decision on one compile; a bug is confirmed by a second one unless it is a hit, whose proof confirms it."""
    steps = steps_of(trial.ledger, count)
    decision = claimed(experiments, decide(experiments, trial, steps))
    hit = Answer(experiments, trial, steps, decision, count, started).hit_of(known, deadline)
    if decision.verdict.is_bug and hit is None:
        decision = confirmed(experiments, trial, decision)
    survives = survival(experiments, trial, decision, ask=False)
    return Answer(experiments, trial, steps, decision, count, started, survives=survives, hit=hit)


def _decided_both_ways(answer: Answer, deadline: float | None) -> Answer:
    """The answer, or that on a way of compiling which a target's device might take, if only that is a bug."""
    tried: tuple[str, ...] = ()
    for question, how in otherwise(answer.experiments, answer.trial):
        if answer.decision.verdict.is_bug or _late(deadline):
            break
        under = answer.experiments.under(how)
        trial = under.trial()
        try:
            refuse_unfit(under.case, trial)
        except (CannotJudge, MachineUnfit):  # the report says that this way was not tried
            continue
        second = _decided(under, trial, answer.count, answer.started)
        tried = (*tried, question)
        if second.decision.verdict.is_bug:
            detail = "; ".join(part for part in (second.decision.detail, f"{question}: the other way") if part)
            answer = replace(second, decision=replace(second.decision, detail=detail))
    return replace(answer, both_ways=tried)


def _of_baseline(answer: Answer) -> Answer:
    """The answer; or that on the exported program which compiled was compared with, if it is that which is wrong."""
    experiments = answer.experiments
    if experiments.against not in (EXPORT, AOTI) or not experiments.baseline_judged.verdict.is_bug:
        return answer
    how = replace(experiments.how, backend=None, path=experiments.against)
    exported = Experiments(experiments.case, experiments.device, how, tolerances=experiments.tolerances)
    exported.run_eager()
    second = _decided(exported, exported.trial(), answer.count, answer.started)
    return second if second.decision.verdict.is_bug else answer


def _looked_at_again(answer: Answer, deadline: float | None) -> Answer:
    """The answer with further evidence: the compiler's own random stream, and the program compiled in float64."""
    experiments, trial = answer.experiments, answer.trial
    benign = not answer.decision.verdict.is_bug and trial.observation.failure is None
    if benign and experiments.runs.draws:
        # Other rewrites fire where the compiler need not follow eager's random numbers.
        unaligned = experiments.under(replace(experiments.how, fallback_random=False))
        second = _decided(unaligned, unaligned.trial(), answer.count, answer.started)
        answer = replace(second if second.decision.verdict.is_bug else answer, own_stream=second.trial)
    ask = not _late(deadline)
    return replace(answer, survives=survival(answer.experiments, answer.trial, answer.decision, ask=ask))
