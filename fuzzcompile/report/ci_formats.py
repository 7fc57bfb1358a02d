"""Results for continuous integration: JUnit XML, and SARIF 2.1.0, in which code scanners hand theirs to others.

A SARIF object is small and flat, so that it is written here; the libraries for it are class models without checks.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from fuzzcompile.corpus.replay.replay_engine import Result
from fuzzcompile.corpus.replay.replay_history import ReplayStatus
from fuzzcompile.corpus.replay.replay_run import Record
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.severity import Severity, rate_effect
from fuzzcompile.report.circumstances import stages_looked_at
from fuzzcompile.report.proof import name_role
from fuzzcompile.report.verdict_text import advice, describe_culprit, meaning


@dataclass(frozen=True)
class Scanned:
    """A case and what was judged of it."""

    path: Path  # of the case, as it was given; a name where there is no file
    report: ReportJson | None  # None where the case could not be judged; ``error`` says why
    error: str | None = None
    known: bool = False  # whether a baseline lists the bug
    seconds: float = 0.0  # wall time
    finding: str | None = None  # the public id of a finding in a corpus
    content: str | None = None  # the program, where there is no file


# JUnit XML: a test case per judged file, or per finding and version of torch.

# Characters that XML 1.0 cannot hold at all; an error's message may contain them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Unsuccessful: TypeAlias = Error | Failure | Skipped


def format_triage_junit(entries: Sequence[Scanned]) -> bytes:
    """The document: failures are bugs, errors are files that could not be judged, skipped are known bugs."""
    return _document(map(_judged_case, entries))


def format_replay_junit(records: Sequence[Record]) -> bytes:
    """The document: failing findings fail, no answer is an error, known bugs and what was not run are skipped."""
    return _document(case for record in records for case in _replayed_cases(record))


def _document(cases: Iterable[TestCase]) -> bytes:
    suite = TestSuite("fuzzcompile")
    suite.add_testcases(list(cases))
    whole, encoded = JUnitXml("fuzzcompile"), io.BytesIO()
    whole.add_testsuite(suite)
    whole.write(encoded, pretty=True)
    return encoded.getvalue()


def _result(
    kind: type[Unsuccessful], message: object, type_: str | None = None, text: str | None = None
) -> Unsuccessful:
    made = kind(_clean(message), type_)
    if text is not None:
        made.text = _clean(text)
    return made


def _clean(text: object) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text or ""))


def _judged_case(entry: Scanned) -> TestCase:
    case = TestCase(_clean(entry.path), "fuzzcompile", round(entry.seconds, 3))
    report = entry.report
    if report is None:
        case.result = [_result(Error, entry.error, "unjudged", entry.error)]
        return case
    line = f"{report['verdict']}: {meaning(report)}"
    if report["is_bug"] and not entry.known:
        culprit = report.get("culprit")
        lines = [
            str(report.get("detail") or ""),
            f"{name_role(culprit)}: {describe_culprit(culprit)}" if culprit else "culprit: not attributed",
            f"signature: {report['signature']}",
            *stages_looked_at(report),
            f"what to do: {advice(report, CommandSubject(str(entry.path), published=True))}",
        ]
        case.result = [_result(Failure, line, report["verdict"], "\n".join(filter(None, lines)))]
        return case
    if entry.known:
        case.result = [_result(Skipped, f"known: {report['signature']}")]
    case.system_out = _clean("\n".join([line, *stages_looked_at(report)]))
    return case


def _replayed_cases(record: Record) -> Iterator[TestCase]:
    finding = record.subject.finding
    name = _clean(f"{finding.public_id} {finding.signature}")
    if record.subject.not_replayable is not None:
        skipped = TestCase(name, "fuzzcompile.replay")
        skipped.result = [_result(Skipped, record.subject.not_replayable)]
        yield skipped
    for version, replayed in record.results.items():
        case = TestCase(name, _clean(f"torch-{version}"), replayed.replay.seconds)
        case.result = list(_outcome(record, version, replayed))
        case.system_out = _clean(replayed.replay.output)
        yield case


def _outcome(record: Record, version: str, replayed: Result) -> Iterator[Unsuccessful]:
    status, finding = ReplayStatus(replayed.replay.status), record.subject.finding
    message, output = f"{status}: {replayed.why}", replayed.replay.output
    if version in record.regressions:
        yield _result(Failure, f"regression, {message}", "regression", output)
    elif status is ReplayStatus.NOT_RUN:
        yield _result(Skipped, message)
    elif status is ReplayStatus.ERRORED:
        yield _result(Error, message, str(status), output)
    elif status is not ReplayStatus.FIXED and finding.status in ("known", "dup", "invalid", "wontfix"):
        yield _result(Skipped, f"{finding.status}, {message}")
    elif status is not ReplayStatus.FIXED:
        yield _result(Failure, message, str(status), output)


Json: TypeAlias = dict[str, object]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Severity.SILENT: "error",
    Severity.ERROR: "error",
    Severity.ALIASING: "error",
    Severity.RAISING_LAYOUT: "warning",
    Severity.LAYOUT: "note",
    Severity.ACCEPTS_INVALID: "note",
}
# The folder that holds torch; it is not named, because it is another one on each machine.
_TORCH = "PACKAGES"
_SITE = re.compile(r"([^:\s]+):(\d+)")


def sarif(scanned: Sequence[Scanned], version: str) -> bytes:
    """The log file: a result for each bug, a rule for each place of the compiler that they blame.

    Cases that could not be judged are notifications of the invocation. Paths are relative to the working folder, as far
    as they lie in it. ``version`` is that of fuzzcompile.
    """
    bugs = [(case, case.report) for case in scanned if case.report is not None and case.report["is_bug"]]
    rules = {make_rule(report): report for _, report in reversed(bugs)}
    errors = [
        {
            "level": "error",
            "message": {"text": case.error or "It could not be judged."},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(case.path)}}}],
        }
        for case in scanned
        if case.report is None
    ]
    driver = {"name": "fuzzcompile", "version": version, "rules": [_rule(name, rules[name]) for name in sorted(rules)]}
    run: Json = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors}],
        "originalUriBaseIds": {_TORCH: {"description": {"text": "The folder that holds the package torch."}}},
        "artifacts": [
            {"location": {"uri": _uri(case.path)}, "contents": {"text": case.content}, "sourceLanguage": "python"}
            for case in scanned
            if case.content is not None
        ],
        "results": [_bug(case, report, sorted(rules)) for case, report in bugs],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, allow_nan=False).encode()


def make_rule(report: ReportJson) -> str:
    """Return the SARIF rule of a bug: the compiler's stage and the family of the rewrite, else the kind of verdict."""
    culprit = report.get("culprit")
    if not culprit:
        return f"unattributed/{report['verdict']}"
    return f"{culprit['stage']}/{culprit.get('family') or culprit.get('rewrite') or report['verdict']}"


def _rule(name: str, report: ReportJson) -> Json:
    stage, _, family = name.partition("/")
    says = f"{family} in {stage}" if report.get("culprit") else f"{report['verdict']}, not attributed"
    return {
        "id": name,
        "shortDescription": {"text": f"torch.compile is wrong: {says}."},
        "help": {"text": "fuzzcompile triage gives the proof of a file, fuzzcompile minimize its reproducer."},
        "properties": {"tags": ["torch.compile", stage]},
    }


def _bug(case: Scanned, report: ReportJson, rules: Sequence[str]) -> Json:
    rule, culprit, rank = make_rule(report), report.get("culprit"), rate_effect(report)
    message = f"{report['verdict']}: {meaning(report)}"
    if culprit:
        message += f"; {name_role(culprit)}: {describe_culprit(culprit)}"
    told = {key: report.get(key) for key in ("confidence", "torch", "device")}
    properties = {"verdict": report["verdict"], "severity": rank, **told, "finding": case.finding}
    # The user's line in the case; the first where the culprit names none, since readers of SARIF ask for a line. What
    # is in the corpus was compiled under a name of its own.
    site, names = _SITE.search(str((culprit or {}).get("site") or "")), (case.path.stem, report.get("case"))
    line = int(site[2]) if site and Path(site[1]).stem in names else 1
    in_torch = []
    if culprit and culprit.get("source"):
        place = _location({"uri": quote(str(culprit["source"])), "uriBaseId": _TORCH}, culprit.get("line") or 1)
        in_torch = [{**place, "message": {"text": "The compiler's code at fault."}}]
    result: Json = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": "warning" if rank is None else _LEVELS[rank],
        "message": {"text": f"{message}."},
        "locations": [_location({"uri": _uri(case.path)}, line)],
        "relatedLocations": in_torch,
        "partialFingerprints": {"signature/v1": report.get("signature") or rule},
        "properties": {key: value for key, value in properties.items() if value is not None},
    }
    if case.known:
        result["suppressions"] = [{"kind": "external", "justification": "The baseline lists its signature."}]
    return result


def _location(artifact: Mapping[str, str], line: int) -> Json:
    return {"physicalLocation": {"artifactLocation": dict(artifact), "region": {"startLine": line}}}


def _uri(path: Path) -> str:
    absolute, here = path.resolve(), Path.cwd()
    return quote(absolute.relative_to(here).as_posix()) if absolute.is_relative_to(here) else absolute.as_uri()
