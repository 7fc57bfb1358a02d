"""SARIF 2.1.0, the format in which code scanners hand their results to others (an OASIS standard).

The object is small and flat, so that it is written here; the libraries for it are class models without checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.severity import Severity, rate_severity
from fuzzcompile.report.proof import role_of
from fuzzcompile.report.verdict import describe_culprit, meaning

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


@dataclass(frozen=True)
class Scanned:
    """A case and what was judged of it.

    Attributes:
        path: of the case, as it was given; a name where there is no file.
        report: None where the case could not be judged.
        error: why it could not.
        known: whether a baseline lists the bug.
        finding: the public id of a finding in a corpus.
        content: the program, where there is no file.
    """

    path: Path
    report: ReportJson | None
    error: str | None = None
    known: bool = False
    finding: str | None = None
    content: str | None = None


def sarif(scanned: Sequence[Scanned], version: str) -> bytes:
    """The log file: a result for each bug, a rule for each place of the compiler that they blame.

    Cases that could not be judged are notifications of the invocation. Paths are relative to the working folder, as far
    as they lie in it.

    Args:
        scanned: the cases.
        version: of fuzzcompile.
    """
    bugs = [(case, case.report) for case in scanned if case.report is not None and case.report["is_bug"]]
    rules = {rule_of(report): report for _, report in reversed(bugs)}
    errors = [_notification(case) for case in scanned if case.report is None]
    driver = {"name": "fuzzcompile", "version": version, "rules": [_rule(name, rules[name]) for name in sorted(rules)]}
    run: Json = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors}],
        "originalUriBaseIds": {_TORCH: {"description": {"text": "The folder that holds the package torch."}}},
        "artifacts": [_artifact(case) for case in scanned if case.content is not None],
        "results": [_result(case, report, sorted(rules)) for case, report in bugs],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, allow_nan=False).encode()


def rule_of(report: ReportJson) -> str:
    """What a bug is filed under: the compiler's stage and the family of the rewrite, else the kind of verdict."""
    culprit = report.get("culprit")
    if not culprit:
        return f"unattributed/{report['verdict']}"
    return f"{culprit['stage']}/{culprit.get('family') or culprit.get('rewrite') or report['verdict']}"


def _rule(name: str, report: ReportJson) -> Json:
    culprit = report.get("culprit")
    stage, _, family = name.partition("/")
    says = f"{family} in {stage}" if culprit else f"{report['verdict']}, not attributed"
    return {
        "id": name,
        "shortDescription": {"text": f"torch.compile is wrong: {says}."},
        "help": {"text": "fuzzcompile triage gives the proof of a file, fuzzcompile minimize its reproducer."},
        "properties": {"tags": ["torch.compile", stage]},
    }


def _result(case: Scanned, report: ReportJson, rules: Sequence[str]) -> Json:
    rule, culprit, rank = rule_of(report), report.get("culprit"), rate_severity(report)
    message = f"{report['verdict']}: {meaning(report)}"
    if culprit:
        message += f"; {role_of(culprit)}: {describe_culprit(culprit)}"
    properties = {
        "verdict": report["verdict"],
        "severity": rank,
        "confidence": report.get("confidence"),
        "torch": report.get("torch"),
        "device": report.get("device"),
        "finding": case.finding,
    }
    result: Json = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": "warning" if rank is None else _LEVELS[rank],
        "message": {"text": f"{message}."},
        "locations": [_location({"uri": _uri(case.path)}, _line(case.path, report))],
        "relatedLocations": list(_in_torch(report)),
        "partialFingerprints": {"signature/v1": report.get("signature") or rule},
        "properties": {key: value for key, value in properties.items() if value is not None},
    }
    if case.known:
        result["suppressions"] = [{"kind": "external", "justification": "The baseline lists its signature."}]
    return result


def _in_torch(report: ReportJson) -> Iterator[Json]:
    culprit = report.get("culprit")
    if culprit and culprit.get("source"):
        place = _location({"uri": quote(str(culprit["source"])), "uriBaseId": _TORCH}, culprit.get("line") or 1)
        yield {**place, "message": {"text": "The compiler's code at fault."}}


def _location(artifact: Mapping[str, str], line: int) -> Json:
    return {"physicalLocation": {"artifactLocation": dict(artifact), "region": {"startLine": line}}}


def _line(path: Path, report: ReportJson) -> int:
    """The user's line in the case; the first where the culprit names none, since readers of SARIF ask for a line."""
    site = _SITE.search(str((report.get("culprit") or {}).get("site") or ""))
    # What is in the corpus was compiled under a name of its own.
    return int(site[2]) if site and Path(site[1]).stem in (path.stem, report.get("case")) else 1


def _uri(path: Path) -> str:
    absolute, here = path.resolve(), Path.cwd()
    return quote(absolute.relative_to(here).as_posix()) if absolute.is_relative_to(here) else absolute.as_uri()


def _artifact(case: Scanned) -> Json:
    return {"location": {"uri": _uri(case.path)}, "contents": {"text": case.content}, "sourceLanguage": "python"}


def _notification(case: Scanned) -> Json:
    where = {"physicalLocation": {"artifactLocation": {"uri": _uri(case.path)}}}
    return {"level": "error", "message": {"text": case.error or "It could not be judged."}, "locations": [where]}
