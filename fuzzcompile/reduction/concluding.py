"""Conclude a reduction: find the nearest passing program, build the reproducer and run it alone."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from fuzzcompile.compiler.custom import in_force
from fuzzcompile.contract import ReportJson, ShownJson, told
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.outcome import Tally
from fuzzcompile.reduction.plain.showing import shown_as_issue
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.reducers.neighbours import passing_neighbour
from fuzzcompile.reduction.reproducer import (
    Confirmation,
    build_reproducer,
    confirm_for_target,
    confirm_reproducer,
    reproducer_of,
    script_of,
)
from fuzzcompile.reduction.scripts.comparing import Script
from fuzzcompile.reduction.scripts.custom import blames_custom
from fuzzcompile.reduction.search import Budget, OutOfBudget, Prober
from fuzzcompile.reduction.writing import written

# Further runs of a reproducer that does not show the bug the first time: the bug may come and go.
_FURTHER_RUNS = 2
# Seconds for the script of an issue where none are left: budgets may be overrun by so much.
_LEAST_PLAIN = 10.0


@dataclass(frozen=True)
class Shown:
    """A reproducer, whether it showed the bug when run alone, and its output; ``note`` is for the user.

    ``plain`` is the script for an issue with what it showed; None if none was made. ``interrupted``: by the user.
    """

    reproducer: str
    confirmed: bool
    said: str
    note: str = ""
    plain: ShownJson | None = None
    interrupted: bool = False


def find_neighbour(program: Program, prober: Prober, tally: Tally, budget: Budget, *, screen: bool) -> str | None:
    """The source of a program one change away that passes; None if none of those that are tried does.

    With ``screen``, candidates are probed without code generation first, and in full only if that passes. An interrupt
    or a spent budget ends the search.
    """

    def passes(candidate: Program) -> bool:
        for screened in (True, False) if screen else (False,):
            if budget.spent(tally.tests):
                raise OutOfBudget
            probed = prober.probe(written(candidate), screen=screened)
            tally.add(probed)
            if probed.verdict not in (Verdict.EQUAL, Verdict.ROUNDING):
                return False
        return True

    try:
        return passing_neighbour(program, passes)
    except (KeyboardInterrupt, OutOfBudget):
        return None


def show(source: str, report: ReportJson, neighbour: str | None, *, for_issue: bool, ends: float = math.inf) -> Shown:
    """Build the reproducer and run it in a clean process, several times if the first run does not show the bug.

    That of a target's finding is judged there for the target instead. Under passes or a backend of the user's own, one
    whose culprit is PyTorch's is tried without them first; where it needs them, no script for an issue is made.

    An interrupt ends the runs; the reproducer is returned unconfirmed.

    Args:
        source: the text of the case.
        report: its report.
        neighbour: the source of a program that passes.
        for_issue: also make what an issue shows, if the bug is confirmed.
        ends: until when there is time for that, as a value of ``time.monotonic()``; ten seconds are taken anyway.

    Raises:
        CaseError, UsageError: no reproducer can be built.
    """
    if in_force():
        if not blames_custom(report):
            # A bug of PyTorch that needs nothing of the user's own.
            bare = script_of(source, report, neighbour=neighbour, custom=False)
            if confirm_reproducer(reproducer_of(bare, report)).confirmed:
                return _run(bare, source, report, for_issue=for_issue, ends=ends)
        for_issue = False
    return _run(script_of(source, report, neighbour=neighbour), source, report, for_issue=for_issue, ends=ends)


def _run(script: Script, source: str, report: ReportJson, *, for_issue: bool, ends: float) -> Shown:
    """Run the reproducer as :func:`show` says."""
    reproducer = reproducer_of(script, report)

    def run() -> Confirmation:
        return confirm_reproducer(reproducer) if told(report) is None else confirm_for_target(reproducer, report)

    try:
        confirmation = run()
        first = Shown(reproducer, confirmation.confirmed, confirmation.output)
        if confirmation.confirmed:
            return _with_plain(first, source, script, report, ends) if for_issue else first
        again = [run() for _ in range(_FURTHER_RUNS)]
    except KeyboardInterrupt:
        return Shown(reproducer, False, "the confirmation was interrupted", interrupted=True)
    shown = [confirmation for confirmation in again if confirmation.confirmed]
    if not shown:
        return replace(first, note=f"the reproducer does not show the bug alone in {len(again) + 1} runs")
    note = f"the bug comes and goes: the reproducer showed it in {len(shown)} of {len(again) + 1} runs"
    late = Shown(reproducer, True, shown[0].output, note)
    return _with_plain(late, source, script, report, ends) if for_issue else late


def _with_plain(shown: Shown, source: str, script: Script, report: ReportJson, ends: float) -> Shown:
    """With the script for an issue; an interrupt leaves it out."""
    try:
        return replace(shown, plain=shown_as_issue(source, script, report, max(_LEAST_PLAIN, ends - time.monotonic())))
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({type(error).__name__}: {error})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def can_be_shown(source: str, report: ReportJson) -> bool:
    """Return whether a reproducer can be built from a reduced text."""
    try:
        build_reproducer(source, report)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return False
    return True


def unconfirmed(source: str, report: ReportJson) -> Shown:
    """The reproducer of an interrupted search, not run; the source itself if none can be built."""
    said = "the search was interrupted"
    try:
        return Shown(build_reproducer(source, report), False, said)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return Shown(source, False, said)
