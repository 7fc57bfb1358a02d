"""JUnit XML for continuous integration: a test case per judged file."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from fuzzcompile.contract import ReportJson
from fuzzcompile.reporting.told import stages_looked_at
from fuzzcompile.reporting.verdict import advice, describe_culprit, meaning

# Characters that XML 1.0 cannot hold at all; an error's message may contain them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    suite = TestSuite("fuzzcompile")
    suite.add_testcases([_case(entry) for entry in entries])
    document, encoded = JUnitXml("fuzzcompile"), io.BytesIO()
    document.add_testsuite(suite)
    document.write(encoded, pretty=True)
    return encoded.getvalue()


def _case(entry: Entry) -> TestCase:
    case = TestCase(_clean(entry.path), "fuzzcompile", round(entry.seconds, 3))
    report = entry.report
    if report is None:
        case.result = [_result(Error, entry.error, "unjudged", entry.error)]
        return case
    line = f"{report['verdict']}: {meaning(report)}"
    if report["is_bug"] and not entry.known:
        case.result = [_result(Failure, line, report["verdict"], _failure(entry.path, report))]
        return case
    if entry.known:
        case.result = [_result(Skipped, f"known: {report['signature']}")]
    case.system_out = _clean("\n".join([line, *stages_looked_at(report)]))
    return case


def _result(
    kind: type[Error] | type[Failure] | type[Skipped],
    message: object,
    type_: str | None = None,
    text: str | None = None,
) -> Error | Failure | Skipped:
    result = kind(_clean(message), type_)
    if text is not None:
        result.text = _clean(text)
    return result


def _failure(path: Path, report: ReportJson) -> str:
    culprit = report.get("culprit")
    lines = [
        str(report.get("detail") or ""),
        f"culprit: {describe_culprit(culprit) if culprit else 'not attributed'}",
        f"signature: {report['signature']}",
        *stages_looked_at(report),
        f"what to do: {advice(report, str(path))}",
    ]
    return "\n".join(filter(None, lines))


def _clean(text: object) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text or ""))
