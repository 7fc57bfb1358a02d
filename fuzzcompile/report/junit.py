"""JUnit XML for continuous integration: a test case per judged file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from junitparser import Error, Failure, Skipped, TestCase

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.report.proof import role_of
from fuzzcompile.report.told import stages_looked_at
from fuzzcompile.report.verdict import advice, describe_culprit, meaning
from fuzzcompile.report.xml import clean, document, result


@dataclass(frozen=True)
class Entry:
    """The result for one file: a report, or the error where there is none; ``seconds`` is wall time."""

    path: Path
    report: ReportJson | None
    error: str | None = None
    known: bool = False
    seconds: float = 0.0


def junit_xml(entries: Sequence[Entry]) -> bytes:
    """The document: failures are bugs, errors are files that could not be judged, skipped are known bugs."""
    return document(_case(entry) for entry in entries)


def _case(entry: Entry) -> TestCase:
    case = TestCase(clean(entry.path), "fuzzcompile", round(entry.seconds, 3))
    report = entry.report
    if report is None:
        case.result = [result(Error, entry.error, "unjudged", entry.error)]
        return case
    line = f"{report['verdict']}: {meaning(report)}"
    if report["is_bug"] and not entry.known:
        case.result = [result(Failure, line, report["verdict"], _failure(entry.path, report))]
        return case
    if entry.known:
        case.result = [result(Skipped, f"known: {report['signature']}")]
    case.system_out = clean("\n".join([line, *stages_looked_at(report)]))
    return case


def _failure(path: Path, report: ReportJson) -> str:
    culprit = report.get("culprit")
    lines = [
        str(report.get("detail") or ""),
        f"{role_of(culprit)}: {describe_culprit(culprit)}" if culprit else "culprit: not attributed",
        f"signature: {report['signature']}",
        *stages_looked_at(report),
        f"what to do: {advice(report, CommandSubject(str(path), published=True))}",
    ]
    return "\n".join(filter(None, lines))
