"""``--contract bitwise``: whether a case keeps the promises of equal bits that torch's settings make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.attribution.culprit import Ablation
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.case import Case
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.unseen import gathered, gathering, reason, shown
from fuzzcompile.contract import ContractJson
from fuzzcompile.contracts import batch, eager, repeated
from fuzzcompile.contracts.execution import Compiles, OutOfTime
from fuzzcompile.contracts.parting import Promise
from fuzzcompile.contracts.settings import promised_by_settings, replaced_settings, strict_settings
from fuzzcompile.execution.observation import Observation
from fuzzcompile.judging.report import Report
from fuzzcompile.oracle.verdicts import Verdict

BITWISE = "bitwise"
PROMISES = (eager.NAME, batch.NAME, repeated.NAME)
# A program that differs from run to run differs from eager too, so that this comes first.
_GRAVEST = (repeated.NAME, eager.NAME, batch.NAME)
_VERDICTS = {eager.NAME: Verdict.PRECISION_LOSS, batch.NAME: Verdict.PRECISION_LOSS,
             repeated.NAME: Verdict.NONDETERMINISTIC}  # fmt: skip


@gathering()
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
    compiles, count = Compiles(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count).promises()
    broken = gravest(promises)
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    notes = (*report.notes, *shown(gathered()), *_replaced(own))
    report = replace(report, contract=contract_json(promises), cost=cost, notes=tuple(dict.fromkeys(notes)))
    unsure = any(promise.unsure for promise in promises) or not all(missed.harmless for missed in gathered())
    report = replace(report, confidence="low" if unsure else report.confidence)
    if report.is_bug or broken is None:
        return report
    report = broken_by(report, broken, ablations)
    return replace(report, detail=f"bitwise contract, {report.detail}")


def gravest(promises: Sequence[Promise]) -> Promise | None:
    """The broken promise that the verdict is about; None if none is broken."""
    broken = {promise.name: promise for promise in promises if promise.holds is False}
    return next((broken[name] for name in _GRAVEST if name in broken), None)


def broken_by(report: Report, broken: Promise, ablations: Sequence[Ablation]) -> Report:
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


def contract_json(promises: Sequence[Promise]) -> ContractJson:
    """The answer in the form of the triage contract."""
    return {
        "name": BITWISE,
        "settings": strict_settings(),
        "promised": promised_by_settings(),
        "compared": "bits; payloads of NaN are counted apart and never a broken promise, signs of zeros count",
        "promises": [promise.to_json() for promise in promises],
    }


def unjudged_contract(why: str) -> ContractJson:
    """Return the contract of a case whose promises were not examined."""
    return contract_json([Promise(name, None, f"not looked at: {why}", unsure=True) for name in PROMISES])


def _replaced(own: Case) -> list[str]:
    entries = replaced_settings(own)
    return [f"the contract replaces what the case sets itself: {', '.join(entries)}"] if entries else []


def _too_late(name: str) -> Promise:
    return Promise(name, None, "not looked at: out of time; raise --timeout", unsure=True)


@dataclass(frozen=True)
class BitwiseJudge:
    """Judges promises (all of :data:`PROMISES` by default) one after the other; the gravest broken one is proved.

    Without ``proves`` it is named only, which saves a compile.
    """

    compiles: Compiles
    count: ReplayCount
    names: tuple[str, ...] = PROMISES
    proves: bool = True

    def promises(self) -> tuple[list[Promise], list[Ablation]]:
        """The promises, and the compiles that prove the gravest broken one."""
        refused = self._refused()
        if refused is not None:
            return [Promise(name, None, f"not looked at: {refused}") for name in self.names], []
        runs = self.compiles.run_eagerly(), self.compiles.run_eagerly()
        plain, again = runs[0][0], runs[1][0]
        if plain.failure:
            return [Promise(name, None, f"not looked at: eager raises {plain.failure}") for name in self.names], []
        try:
            execution = self.compiles.execute(runs=2)
        except OutOfTime:
            return [
                Promise(name, None, "not looked at: out of time; raise --timeout", unsure=True) for name in self.names
            ], []
        failure = execution.first.failure
        if failure:
            return [Promise(name, None, f"not looked at: compiled raises {failure}") for name in self.names], []
        judges: dict[str, Callable[[], Promise]] = {
            eager.NAME: lambda: eager.judge_eager(self.compiles, plain, again, execution, self.count),
            batch.NAME: lambda: batch.judge_batch(self.compiles),
            repeated.NAME: lambda: repeated.judge_repeated(self.compiles, execution),
        }
        promises = [self._judged(name, judge) for name, judge in judges.items() if name in self.names]
        return promises, self._proof(promises, plain)

    def _refused(self) -> str | None:
        settings = self.compiles.case.settings
        return (
            None if settings.backend == "inductor" else f"the settings are Inductor's, and {settings.backend} compiles"
        )

    def _judged(self, name: str, judge: Callable[[], Promise]) -> Promise:
        try:
            return judge()
        except OutOfTime:
            return _too_late(name)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of a program run in other ways, or of the looking: the other promises still stand
            return Promise(name, None, f"not looked at: {reason(error)}", unsure=True)

    def _proof(self, promises: Sequence[Promise], plain: Observation) -> list[Ablation]:
        """A compile in which ATen computes the operator at fault."""
        broken = gravest(promises)
        first = broken.first if broken is not None else None
        if not self.proves or broken is None or first is None or first.operator is None or self.compiles.late:
            return []
        control = Control(fallbacks=(first.operator,))
        differs: dict[str, Callable[[], bool]] = {
            eager.NAME: lambda: eager.is_broken(self.compiles, plain, control, self.count),
            batch.NAME: lambda: batch.rows_differ(self.compiles, control),
            repeated.NAME: lambda: repeated.repeats_differ(self.compiles, control),
        }
        try:
            return [Ablation(f"ATen computes {first.operator}", not differs[broken.name](), None)]
        except OutOfTime:
            return []
