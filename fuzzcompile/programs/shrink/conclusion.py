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
from fuzzcompile.programs.shrink.search import CandidateTests, OutOfBudget

# Programs one change away that are compiled at most.
_MOST_NEIGHBOURS = 14
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


def find_passing_neighbour(program: Program, passes: Callable[[Program], bool]) -> str | None:
    """The source of the first program one change away that ``passes``, as many lines long; None if none does."""
    own = len(write_source(program).splitlines())
    changed = [*generate_changes(program), *generate_substitutes(program)]
    written = ((change.program, write_source(change.program)) for change in changed)
    near = ((candidate, source) for candidate, source in written if len(source.splitlines()) == own)
    return next((source for candidate, source in islice(near, _MOST_NEIGHBOURS) if passes(candidate)), None)


def find_neighbour(program: Program, questions: CandidateTests, *, screen: bool) -> str | None:
    """The source of a program one change away in one line that passes; None if none of those that are tried does.

    With ``screen``, candidates are probed without code generation first, and in full only if that passes. An interrupt
    or a spent budget ends the search.
    """

    def passes(candidate: Program) -> bool:
        probes = (questions.probe(write_program(candidate), screen=s) for s in ((True, False) if screen else (False,)))
        return all(probed.verdict in (Verdict.EQUAL, Verdict.ROUNDING) for probed in probes)

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
    With ``for_issue`` what an issue shows is made too, if the bug is confirmed: in the time until ``ends``, a value of
    ``time.monotonic()``, or ten seconds. An interrupt ends the runs; the reproducer is returned unconfirmed.

    Raises:
        CaseError, UsageError: no reproducer can be built.
    """
    custom, script = has_custom_code(), None
    if custom and not blames_custom(report):
        bare = choose_script(source, report, neighbour=neighbour, custom=False)
        if confirm_reproducer(write_reproducer(bare, report)).confirmed:
            custom, script = False, bare  # a bug of PyTorch that needs nothing of the user's own
    script = script or choose_script(source, report, neighbour=neighbour)
    shown = _run(write_reproducer(script, report), report)
    if not for_issue or custom or not shown.confirmed:
        return shown
    seconds = max(_LEAST_PLAIN, ends - time.monotonic())
    try:
        return replace(shown, plain=build_issue_script(source, script, report, seconds))
    except KeyboardInterrupt:
        return replace(shown, interrupted=True)
    except Exception as error:  # a case may be of any form, and its reproducer stands without this script
        why = f"no script for an issue could be made ({type(error).__name__}: {error})"
        return replace(shown, note="; ".join(filter(None, (shown.note, why))))


def _run(reproducer: str, report: ReportJson) -> ReproducerResult:
    def run() -> ReproducerConfirmation:
        return confirm_reproducer(reproducer) if read_target(report) is None else confirm_for_target(reproducer, report)

    try:
        first = run()
        again = [] if first.confirmed else [run() for _ in range(_FURTHER_RUNS)]
    except KeyboardInterrupt:
        return ReproducerResult(reproducer, False, "the confirmation was interrupted", interrupted=True)
    shown = [confirmation for confirmation in again if confirmation.confirmed]
    if shown:
        note = f"the bug comes and goes: the reproducer showed it in {len(shown)} of {len(again) + 1} runs"
        return ReproducerResult(reproducer, True, shown[0].output, note)
    note = f"the reproducer does not show the bug alone in {len(again) + 1} runs" if again else ""
    return ReproducerResult(reproducer, first.confirmed, first.output, note)


def try_reproducer(source: str, report: ReportJson) -> str | None:
    """The reproducer of a source that was not judged; None if none can be built."""
    try:
        return build_reproducer(source, report)
    except Exception:  # it runs the case, which may raise anything once statements are gone
        return None
