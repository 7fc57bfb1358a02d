"""Promises of equal bits, judged for ``--contract bitwise`` or for the case's own settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.watch.unseen import format_reason, format_unseen, gather_unseen, get_gathered
from fuzzcompile.model.contract import ContractJson
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case
from fuzzcompile.run.observation import Observation
from fuzzcompile.triage.attribution.culprit import Ablation
from fuzzcompile.triage.attribution.steps import ReplayCount
from fuzzcompile.triage.bitwise import equals_eager, invariance
from fuzzcompile.triage.bitwise.bit_difference import PromiseAnswer
from fuzzcompile.triage.bitwise.execution import (
    BitwiseOutOfTime,
    StrictCompiler,
    describe_promises,
    list_replaced_settings,
    strict_settings,
)
from fuzzcompile.triage.decision import asks_for_casts, describe_promise
from fuzzcompile.triage.triage_report import Report

BITWISE = "bitwise"
PROMISE_NAMES = (equals_eager.EAGER, invariance.BATCH, invariance.RUN_TO_RUN)
# A program that differs from run to run differs from eager too, so that this comes first.
_GRAVEST = (invariance.RUN_TO_RUN, equals_eager.EAGER, invariance.BATCH)
_VERDICTS = {equals_eager.EAGER: Verdict.PRECISION_LOSS, invariance.BATCH: Verdict.PRECISION_LOSS,
             invariance.RUN_TO_RUN: Verdict.NONDETERMINISTIC}  # fmt: skip


@gather_unseen()
def judge_bitwise(
    case: Case, device: torch.device, report: Report, *, own: Case, vetoes: Sequence[str] = (), deadline: float | None
) -> Report:
    """Judge the promises of equal bits, and put the answer into a report on the same case.

    Args:
        case: the case under the strict settings.
        device: where it runs.
        report: what was found out about its values.
        own: the case as its author wrote it.
        vetoes: rewrites that are refused throughout.
        deadline: value of ``time.monotonic()`` after which no further compile is begun.
    """
    started = time.perf_counter()
    compiles, count = StrictCompiler(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count).judge_promises()
    broken = select_gravest(promises)
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    notes = (*report.notes, *format_unseen(get_gathered()), *_note_replaced_settings(own))
    report = replace(report, contract=make_contract_json(promises), cost=cost, notes=tuple(dict.fromkeys(notes)))
    unsure = any(promise.unsure for promise in promises) or not all(missed.harmless for missed in get_gathered())
    report = replace(report, confidence="low" if unsure else report.confidence)
    if report.is_bug or broken is None:
        return report
    report = with_broken_promise(report, broken, ablations)
    return replace(report, detail=f"bitwise contract, {report.detail}")


def select_gravest(promises: Sequence[PromiseAnswer]) -> PromiseAnswer | None:
    """The broken promise that the verdict is about; None if none is broken."""
    broken = {promise.name: promise for promise in promises if promise.holds is False}
    return next((broken[name] for name in _GRAVEST if name in broken), None)


def with_broken_promise(report: Report, broken: PromiseAnswer, ablations: Sequence[Ablation]) -> Report:
    """The report with the verdict on a broken promise, and its first parting as the culprit."""
    first, proved = broken.first, [ablation.repairs for ablation in ablations]
    necessary = proved[0] if proved else None
    culprit = first.culprit(necessary=necessary) if first is not None else None
    attribution = replace(report.attribution, culprit=culprit, ablations=[*report.attribution.ablations, *ablations])
    return replace(
        report,
        verdict=_VERDICTS[broken.name],
        confidence="high" if necessary and not broken.unsure else "low",
        detail=f"{broken.name}: {broken.why}",
        attribution=attribution,
    )


def make_contract_json(promises: Sequence[PromiseAnswer]) -> ContractJson:
    """The answer in the form of the triage contract."""
    return {
        "name": BITWISE,
        "settings": strict_settings(),
        "promised": describe_promises(),
        "compared": "bits; payloads of NaN are counted apart and never a broken promise, signs of zeros count",
        "promises": [promise.to_json() for promise in promises],
    }


def make_unjudged_contract(why: str) -> ContractJson:
    """Return the contract of a case whose promises were not examined."""
    return make_contract_json(
        [PromiseAnswer(name, None, f"not looked at: {why}", unsure=True) for name in PROMISE_NAMES]
    )


def _note_replaced_settings(own: Case) -> list[str]:
    entries = list_replaced_settings(own)
    return [f"the contract replaces what the case sets itself: {', '.join(entries)}"] if entries else []


def _make_late_promise(name: str) -> PromiseAnswer:
    return PromiseAnswer(name, None, "not looked at: out of time; raise --timeout", unsure=True)


@dataclass(frozen=True)
class BitwiseJudge:
    """Judges promises (all of :data:`PROMISE_NAMES` by default) one after the other; the gravest broken one is proved.

    Without ``proves`` it is named only, which saves a compile.
    """

    compiles: StrictCompiler
    count: ReplayCount
    names: tuple[str, ...] = PROMISE_NAMES
    proves: bool = True

    def judge_promises(self) -> tuple[list[PromiseAnswer], list[Ablation]]:
        """The promises, and the compiles that prove the gravest broken one."""
        refused = self._why_refused()
        if refused is not None:
            return [PromiseAnswer(name, None, f"not looked at: {refused}") for name in self.names], []
        runs = self.compiles.run_eager(), self.compiles.run_eager()
        plain, again = runs[0][0], runs[1][0]
        if plain.failure:
            return [
                PromiseAnswer(name, None, f"not looked at: eager raises {plain.failure}") for name in self.names
            ], []
        try:
            execution = self.compiles.execute(runs=2)
        except BitwiseOutOfTime:
            return [
                PromiseAnswer(name, None, "not looked at: out of time; raise --timeout", unsure=True)
                for name in self.names
            ], []
        failure = execution.first.failure
        if failure:
            return [PromiseAnswer(name, None, f"not looked at: compiled raises {failure}") for name in self.names], []
        judges: dict[str, Callable[[], PromiseAnswer]] = {
            equals_eager.EAGER: lambda: equals_eager.judge_eager(self.compiles, plain, again, execution, self.count),
            invariance.BATCH: lambda: invariance.judge_batch(self.compiles),
            invariance.RUN_TO_RUN: lambda: invariance.judge_run_to_run(self.compiles, execution),
        }
        promises = [self._judge_promise(name, judge) for name, judge in judges.items() if name in self.names]
        return promises, self._prove(promises, plain)

    def _why_refused(self) -> str | None:
        settings = self.compiles.case.settings
        return (
            None if settings.backend == "inductor" else f"the settings are Inductor's, and {settings.backend} compiles"
        )

    def _judge_promise(self, name: str, judge: Callable[[], PromiseAnswer]) -> PromiseAnswer:
        try:
            return judge()
        except BitwiseOutOfTime:
            return _make_late_promise(name)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of a program run in other ways, or of the looking: the other promises still stand
            return PromiseAnswer(name, None, f"not looked at: {format_reason(error)}", unsure=True)

    def _prove(self, promises: Sequence[PromiseAnswer], plain: Observation) -> list[Ablation]:
        """A compile in which ATen computes the operator at fault."""
        broken = select_gravest(promises)
        first = broken.first if broken is not None else None
        if not self.proves or broken is None or first is None or first.operator is None or self.compiles.is_late:
            return []
        control = Control(fallbacks=(first.operator,))
        differs: dict[str, Callable[[], bool]] = {
            equals_eager.EAGER: lambda: equals_eager.is_broken(self.compiles, plain, control, self.count),
            invariance.BATCH: lambda: invariance.rows_differ(self.compiles, control),
            invariance.RUN_TO_RUN: lambda: invariance.repeats_differ(self.compiles, control),
        }
        try:
            return [Ablation(f"ATen computes {first.operator}", not differs[broken.name](), None)]
        except BitwiseOutOfTime:
            return []


# The promises of equal bits that a case's own settings make, judged with no ``--contract`` asked for.

DETERMINISTIC = "torch.use_deterministic_algorithms: equal bits from run to run"
"""Its documentation: such algorithms, "given the same input, and when run on the same software and hardware, always
produce the same output". Of ``config.deterministic`` torch says less: it takes numerics from no timing."""


def find_promises(case: Case, device: torch.device, *, rounding: bool) -> dict[str, str]:
    """The promises of equal bits that the case asks for, each with the words of a report.

    Args:
        case: whose settings are looked at, and torch's own as the case left them.
        device: where it runs; the CPU's code rounds as eager does once casts are kept, a GPU's takes all settings.
        rounding: whether any value has other bits than eager's, so that there is something to look into.
    """
    settings = case.settings
    if settings.backend != "inductor":
        return {}
    own = {**settings.inductor, **settings.options}
    strict = {name: value for name, value in strict_settings().items() if name not in _OTHER_PROMISES}
    as_eager = device.type == "cpu" or all(own.get(name) == value for name, value in strict.items())
    promises: dict[str, str] = {}
    if rounding and as_eager and asks_for_casts(settings):
        promises[equals_eager.EAGER] = describe_promise("emulate_precision_casts")
    if own.get("batch_invariant") is True:
        promises[invariance.BATCH] = describe_promise("batch_invariant")
    if own.get("deterministic") is True:
        promises[invariance.RUN_TO_RUN] = describe_promise("deterministic")
    if torch.are_deterministic_algorithms_enabled():
        promises[invariance.RUN_TO_RUN] = DETERMINISTIC
    return promises


def find_broken_bits(
    case: Case, device: torch.device, wanted: str, *, vetoes: Sequence[str] = ()
) -> tuple[PromiseAnswer | None, int]:
    """The promise of equal bits that reports call ``wanted``, if a case asks for it and breaks it; and the compiles.

    Args:
        case: a smaller form of one that breaks it.
        device: where it runs.
        wanted: of the values of :func:`find_promises`.
        vetoes: rewrites that are refused.
    """
    names = tuple(name for name, words in find_promises(case, device, rounding=True).items() if words == wanted)
    if not names:
        return None, 0
    compiles = StrictCompiler(case, device, tuple(vetoes))
    promises, _ = BitwiseJudge(compiles, ReplayCount(), names, proves=False).judge_promises()
    return select_gravest(promises), compiles.count


# Of the strict settings, those that promise something else than eager's bits.
_OTHER_PROMISES = ("deterministic", "batch_invariant", "fallback_random")


@gather_unseen()
def judge_own_promises(
    case: Case, device: torch.device, report: Report, *, vetoes: Sequence[str] = (), deadline: float | None
) -> Report:
    """Judge the promises of equal bits that the settings of a case make; a broken one becomes the report's verdict.

    A report that is a bug already, and one on graphs alone (``screened``), stays as it is.

    Args:
        case: under its own settings.
        device: where it runs.
        report: what was found out about its values.
        vetoes: rewrites that are refused throughout.
        deadline: value of ``time.monotonic()`` after which no further compile is begun.
    """
    if report.is_bug or report.screened or report.verdict is Verdict.INVALID or report.failure is not None:
        return report
    wanted = find_promises(case, device, rounding=report.verdict is not Verdict.EQUAL)
    if not wanted:
        return report
    started = time.perf_counter()
    compiles, count = StrictCompiler(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count, tuple(wanted)).judge_promises()
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    unseen = [f"{wanted[each.name]}: {each.why}" for each in promises if each.holds is None and each.unsure]
    report = replace(report, cost=cost, notes=(*report.notes, *unseen))
    if unseen or not all(missed.harmless for missed in get_gathered()):
        report = replace(report, confidence="low")
    broken = select_gravest(promises)
    if broken is None:
        return report
    return replace(with_broken_promise(report, broken, ablations), promise=wanted[broken.name])
