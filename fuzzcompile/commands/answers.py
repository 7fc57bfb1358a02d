"""The answer on one file of a triage, in the forms in which it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from fuzzcompile.contract import SCHEMA, ReportJson
from fuzzcompile.severity import Severity, severity

if TYPE_CHECKING:
    from fuzzcompile.reporting.baseline import Baseline
    from fuzzcompile.reporting.junit import Entry
    from fuzzcompile.reporting.sarif import Scanned


class Unjudged(TypedDict):
    """The JSON object for a file that could not be judged."""

    schema: int
    case: str
    verdict: None
    is_bug: bool
    error: str | None


@dataclass(frozen=True)
class Answer:
    """The result for one file: a report, or the reason why there is none.

    ``known`` says whether a bug is in the baseline (None without a baseline, or without a bug), ``status`` is the exit
    status that the file asks for, ``seconds`` the wall time of judging it, ``machine`` the description of where it was
    judged if that was asked for.
    """

    path: Path
    report: ReportJson | None
    error: str | None = None
    status: int = 0
    known: bool | None = None
    seconds: float = 0.0
    machine: Mapping[str, object] | None = None

    def to_json(self) -> ReportJson | Unjudged:
        """The report, or an object with the error."""
        if self.report is not None:
            return self.report if self.known is None else {**self.report, "known": self.known}
        return {"schema": SCHEMA, "case": self.path.stem, "verdict": None, "is_bug": False, "error": self.error}

    def to_junit(self) -> Entry:
        """The answer as a JUnit test case."""
        from fuzzcompile.reporting.junit import Entry

        return Entry(self.path, self.report, self.error, bool(self.known), self.seconds)

    def status_from(self, least: Severity | None) -> int:
        """The exit status if only bugs that are at least as bad as ``least`` count."""
        own = severity(self.report)
        return (
            0 if self.status == 1 and least is not None and own is not None and not own.reaches(least) else self.status
        )

    def to_sarif(self) -> Scanned:
        """Return the answer in the form from which SARIF is written."""
        from fuzzcompile.reporting.sarif import Scanned

        return Scanned(self.path, self.report, self.error, bool(self.known))

    def compared_with(self, baseline: Baseline | None) -> Answer:
        """The answer with ``known`` set; a bug that the baseline lists does not change the exit status."""
        if baseline is None or self.report is None or not self.report["is_bug"]:
            return self
        known = baseline.knows(self.report)
        return replace(self, known=known, status=0 if known else self.status)


def overall_status(answers: Sequence[Answer], least: Severity | None = None) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if any is a bug (of ``least``), else 0."""
    return max((answer.status_from(least) for answer in answers), default=0)
