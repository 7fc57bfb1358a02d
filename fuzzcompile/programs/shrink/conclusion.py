"""Conclude a reduction: find the nearest passing program, build the reproducer and run it alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from fuzzcompile.compiler.custom_code import has_custom_code
from fuzzcompile.model.contract import ReportJson, ShownJson, read_target
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.edits.changes import generate_changes, generate_substitutes
from fuzzcompile.programs.ir.case_source import write_program, write_source
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.programs.scripts.issue_script import build_issue_script
from fuzzcompile.programs.scripts.reproducer import (
    ReproducerConfirmation,
    blames_custom,
    build_reproducer,
    choose_script,
    confirm_for_target,
    confirm_reproducer,
    write_reproducer,
)
from fuzzcompile.programs.scripts.script_plan import ScriptPlan
from fuzzcompile.programs.shrink.outcome import SearchTally
from fuzzcompile.programs.shrink.search import OutOfBudget, Prober, SearchBudget

# Find the nearest program that passes: one change in one line of the reduced program.

# Candidates compiled at most.
_MOST = 14


def find_passing_neighbour(program: Program, passes: Callable[[Program], bool], *, most: int = _MOST) -> str | None:
    """The source of the first program one change away that ``passes``, as many lines long; None if none does.

    Args:
        program: a program that shows a bug.
        passes: compiles another one, and returns whether that shows none.
        most: how many programs are tried.
    """
    own = len(write_source(program).splitlines())
    changed = [*generate_changes(program), *generate_substitutes(program)]
    written = ((change.program, write_source(change.program)) for change in changed)
    near = ((candidate, source) for candidate, source in written if len(source.splitlines()) == own)
    return next((source for candidate, source in islice(near, most) if passes(candidate)), None)


# Further runs of a reproducer that does not show the bug the first time: the bug may come and go.
_FURTHER_RUNS = 2
# Seconds for the script of an issue where none are left: budgets may be overrun by so much.
_LEAST_PLAIN = 10.0


@dataclass(frozen=True)
class ReproducerResult:
    """A reproducer, whether it showed the bug when run alone, and its output; ``note`` is for the user.

    ``plain`` is the script for an issue with what it showed; None if none was made. ``interrupted``: by the user.
    """

    reproducer: str
    confirmed: bool
    said: str
    note: str = ""
    plain: ShownJson | None = None
    interrupted: bool = False


def find_neighbour(
    program: Program, prober: Prober, tally: SearchTally, budget: SearchBudget, *, screen: bool
) -> str | None:
    """The source of a program one change away that passes; None if none of those that are tried does.

    With ``screen``, candidates are probed without code generation first, and in full only if that passes. An interrupt
    or a spent budget ends the search.
    """

    def passes(candidate: Program) -> bool:
        for screened in (True, False) if screen else (False,):
            if budget.spent(tally.tests):
                raise OutOfBudget
            probed = prober.probe(write_program(candidate), screen=screened)
            tally.add(probed)
            if probed.verdict not in (Verdict.EQUAL, Verdict.ROUNDING):
                return False
        return True

    try:
        return find_passing_neighbour(program, passes)
    except (KeyboardInterrupt, OutOfBudget):
        return None


def show(
    source: str, report: ReportJson, neighbour: str | None, *, for_issue: bool, ends: float = math.inf
) -> ReproducerResult:
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
    if has_custom_code():
        if not blames_custom(report):
            # A bug of PyTorch that needs nothing of the user's own.
            bare = choose_script(source, report, neighbour=neighbour, custom=False)
            if confirm_reproducer(write_reproducer(bare, report)).confirmed:
                return _run(bare, source, report, for_issue=for_issue, ends=ends)
        for_issue = False
    return _run(choose_script(source, report, neighbour=neighbour), source, report, for_issue=for_issue, ends=ends)


def _run(script: ScriptPlan, source: str, report: ReportJson, *, for_issue: bool, ends: float) -> ReproducerResult:
    """Run the reproducer as :func:`show` says."""
    reproducer = write_reproducer(script, report)

    def run() -> ReproducerConfirmation:
        return confirm_reproducer(reproducer) if read_target(report) is None else confirm_for_target(reproducer, report)

    try:
        confirmation = run()
        first = ReproducerResult(reproducer, confirmation.confirmed, confirmation.output)
        if confirmation.confirmed:
            return _add_issue_script(first, source, script, report, ends) if for_issue else first
        again = [run() for _ in range(_FURTHER_RUNS)]
    except KeyboardInterrupt:
        return ReproducerResult(reproducer, False, "the confirmation was interrupted", interrupted=True)
    shown = [confirmation for confirmation in again if confirmation.confirmed]
    if not shown:
        return replace(first, note=f"the reproducer does not show the bug alone in {len(again) + 1} runs")
    note = f"the bug comes and goes: the reproducer showed it in {len(shown)} of {len(again) + 1} runs"
    late = ReproducerResult(reproducer, True, shown[0].output, note)
    return _add_issue_script(late, source, script, report, ends) if for_issue else late


def _add_issue_script(
    shown: ReproducerResult, source: str, script: ScriptPlan, report: ReportJson, ends: float
) -> ReproducerResult:
    """With the script for an issue; an interrupt leaves it out."""
    try:
        return replace(
            shown, plain=build_issue_script(source, script, report, max(_LEAST_PLAIN, ends - time.monotonic()))
        )
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({type(error).__name__}: {error})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def can_build_reproducer(source: str, report: ReportJson) -> bool:
    """Return whether a reproducer can be built from a reduced text."""
    try:
        build_reproducer(source, report)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return False
    return True


def build_unconfirmed(source: str, report: ReportJson) -> ReproducerResult:
    """The reproducer of an interrupted search, not run; the source itself if none can be built."""
    said = "the search was interrupted"
    try:
        return ReproducerResult(build_reproducer(source, report), False, said)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return ReproducerResult(source, False, said)
