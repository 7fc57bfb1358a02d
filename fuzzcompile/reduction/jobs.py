"""The input and the result of a minimisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fuzzcompile.contract import ReportJson
from fuzzcompile.generation import Profile
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.evaluating import without_sizes
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.scripts.sources import case_part
from fuzzcompile.reduction.search import Prober
from fuzzcompile.reduction.writing import model_lines
from fuzzcompile.signatures import agree, coarse, error_of, is_unproved, raised_alike

# How graphs are captured: by dynamo with static sizes, by dynamo with sizes read off the inputs, or by AOTAutograd,
# which leaves no function transforms and higher-order operators.
Capture = Literal["static", "dynamic", "aten"]


class Tools(Prober, Protocol):
    """The steps that need torch and the compiler, done in this process or in a worker that may crash."""

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The graphs of a case as programs, the likeliest to show the bug first; empty if none can be translated."""

    def judge(self, source: str) -> ReportJson:
        """The full report on a source, in its JSON form."""

    def become_thorough(self) -> None:
        """Refine the verdicts of all further probes as triage does."""


@dataclass(frozen=True)
class Job:
    """A source to be minimized, its report, and the recipe (``choices``, ``profile``) of a generated case.

    ``is_case``: it is a case file, not a script. ``screens``: the bug may show without code generation. ``resizes``: it
    may be compiled for dynamic sizes. ``keeps``: what must stay the same, "culprit" or "verdict". ``for_issue``: what
    an issue shows is made too (`Outcome.shown`), which takes some more processes, as long as there is time until
    ``ends``, a value of ``time.monotonic()``.
    """

    source: str
    report: ReportJson
    choices: bytes | None = None
    profile: Profile = field(default_factory=Profile)
    is_case: bool = True
    screens: bool = False
    resizes: bool = False
    keeps: str = "culprit"
    for_issue: bool = False
    ends: float = math.inf


def same_bug(wanted: ReportJson, reached: ReportJson, keeps: str = "culprit") -> bool:
    """Return whether two reports describe the same bug.

    They do if their signatures agree (:func:`~fuzzcompile.signatures.agree`), or if one proved culprit raises alike in
    both. If a culprit has low confidence, the kind of verdict and the stage decide, unless the causes are known to be
    two; if ``keeps`` is "verdict", the kind of verdict alone. A large case may name no culprit because its time was up:
    then the kind of verdict and the error that was raised decide, and the smaller case says more.
    """
    if not reached.get("is_bug"):
        return False
    if keeps == "culprit":
        signatures = wanted.get("signature") or "", reached.get("signature") or ""
        if agree(*signatures) or raised_alike(wanted, reached):
            return True
        if agree(*map(coarse, signatures)):
            return False  # the same place, for another cause
    if Verdict(wanted["verdict"]).kind != Verdict(reached["verdict"]).kind:
        return False
    if keeps == "verdict" or (_names_nobody(wanted) and _raised(wanted) == _raised(reached)):
        return True
    guessed = "low" in (wanted.get("confidence"), reached.get("confidence"))
    stages = [(report.get("culprit") or {}).get("stage") for report in (wanted, reached)]
    return guessed and (stages[0] == stages[1] or None in stages)


def _names_nobody(report: ReportJson) -> bool:
    """Return whether a report has neither a culprit nor a signature that names a place in the compiler."""
    return not report.get("culprit") and (is_unproved(report.get("signature") or "") or _raised(report) is not None)


def _raised(report: ReportJson) -> str | None:
    """The error that a report is about, without what hangs on sizes; None for another kind of bug."""
    error = error_of(report)
    return None if error is None else without_sizes(error)


def is_smaller(source: str, program: Program, original: str, captured: Sequence[Program]) -> bool:
    """Return whether a program, written as ``source``, is smaller than the ``original`` text of its graphs."""
    try:
        before = case_part(original)
    except SyntaxError:
        return True
    if source.split() == before.split():
        return False
    same_work = len(captured) == 1 and program.size >= captured[0].size
    return not (same_work and model_lines(source) >= model_lines(before))
