"""The promises of equal bits that a case's own settings make, judged with no ``--contract`` asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.case import Case
from fuzzcompile.compiler.unseen import gathered, gathering
from fuzzcompile.contracts import batch, eager, repeated
from fuzzcompile.contracts.bitwise import BitwiseJudge, broken_by, gravest
from fuzzcompile.contracts.execution import Compiles
from fuzzcompile.contracts.parting import Promise
from fuzzcompile.contracts.settings import strict_settings
from fuzzcompile.judging.promises import asks_for_casts, promise
from fuzzcompile.judging.report import Report
from fuzzcompile.oracle.verdicts import Verdict

DETERMINISTIC = "torch.use_deterministic_algorithms: equal bits from run to run"
"""Its documentation: such algorithms, "given the same input, and when run on the same software and hardware, always
produce the same output". Of ``config.deterministic`` torch says less: it takes numerics from no timing."""


def promises_of(case: Case, device: torch.device, *, rounding: bool) -> dict[str, str]:
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
        promises[eager.NAME] = promise("emulate_precision_casts")
    if own.get("batch_invariant") is True:
        promises[batch.NAME] = promise("batch_invariant")
    if own.get("deterministic") is True:
        promises[repeated.NAME] = promise("deterministic")
    if torch.are_deterministic_algorithms_enabled():
        promises[repeated.NAME] = DETERMINISTIC
    return promises


def broken_again(
    case: Case, device: torch.device, wanted: str, *, vetoes: Sequence[str] = ()
) -> tuple[Promise | None, int]:
    """The promise of equal bits that reports call ``wanted``, if a case asks for it and breaks it; and the compiles.

    Args:
        case: a smaller form of one that breaks it.
        device: where it runs.
        wanted: of the values of :func:`promises_of`.
        vetoes: rewrites that are refused.
    """
    names = tuple(name for name, words in promises_of(case, device, rounding=True).items() if words == wanted)
    if not names:
        return None, 0
    compiles = Compiles(case, device, tuple(vetoes))
    promises, _ = BitwiseJudge(compiles, ReplayCount(), names, proves=False).promises()
    return gravest(promises), compiles.count


# Of the strict settings, those that promise something else than eager's bits.
_OTHER_PROMISES = ("deterministic", "batch_invariant", "fallback_random")


@gathering()
def judge_promised(
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
    wanted = promises_of(case, device, rounding=report.verdict is not Verdict.EQUAL)
    if not wanted:
        return report
    started = time.perf_counter()
    compiles, count = Compiles(case, device, tuple(vetoes), deadline), ReplayCount()
    promises, ablations = BitwiseJudge(compiles, count, tuple(wanted)).promises()
    cost = replace(
        report.cost,
        compiles=report.cost.compiles + compiles.count,
        replays=report.cost.replays + count.replays,
        seconds=report.cost.seconds + time.perf_counter() - started,
    )
    unseen = [f"{wanted[each.name]}: {each.why}" for each in promises if each.holds is None and each.unsure]
    report = replace(report, cost=cost, notes=(*report.notes, *unseen))
    if unseen or not all(missed.harmless for missed in gathered()):
        report = replace(report, confidence="low")
    broken = gravest(promises)
    if broken is None:
        return report
    return replace(broken_by(report, broken, ablations), promise=wanted[broken.name])
