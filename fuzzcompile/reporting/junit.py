"""JUnit XML for continuous integration: a test case per judged file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fuzzcompile.reporting import files
from fuzzcompile.reporting.verdict import advice, describe_culprit, meaning

_OPTION = "--junit"
# Characters that XML 1.0 cannot hold at all; an error's message may.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Entry:
    """What is said of one file: a report (contract form), or an error where there is none."""

    path: Path
    report: Mapping[str, Any] | None
    error: str | None = None
    known: bool = False
    seconds: float = 0.0


def check_writable(path: Path) -> None:
    """Find out before any work whether the file can be written.

    Raises:
        UsageError: it cannot.
    """
    files.check_writable(path, _OPTION)


def write_junit(path: Path, entries: Sequence[Entry]) -> None:
    """Write the file whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    files.write_whole(path, junit_xml(entries), _OPTION)


def junit_xml(entries: Sequence[Entry]) -> bytes:
    """The document: failures are bugs, errors are files that could not be judged, skipped are known bugs."""
    suite = ElementTree.Element("testsuite", name="fuzzcompile")
    kinds = [_add_case(suite, entry) for entry in entries]
    suite.set("tests", str(len(entries)))
    for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(kinds.count(kind)))
    suite.set("time", f"{sum(entry.seconds for entry in entries):.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _add_case(suite: ElementTree.Element, entry: Entry) -> str | None:
    """Append one test case; the name of the element that says how it ended, None where it passed."""
    name = _clean(entry.path)
    case = ElementTree.SubElement(suite, "testcase", classname="fuzzcompile", name=name, time=f"{entry.seconds:.3f}")
    report = entry.report
    if report is None:
        error = ElementTree.SubElement(case, "error", type="unjudged", message=_clean(entry.error))
        error.text = _clean(entry.error)
        return "error"
    line = f"{report['verdict']}: {meaning(report)}"
    if not report["is_bug"]:
        ElementTree.SubElement(case, "system-out").text = _clean(line)
        return None
    if entry.known:
        ElementTree.SubElement(case, "skipped", message=_clean(f"known: {report['signature']}"))
        ElementTree.SubElement(case, "system-out").text = _clean(line)
        return "skipped"
    failure = ElementTree.SubElement(case, "failure", type=_clean(report["verdict"]), message=_clean(line))
    culprit = report.get("culprit")
    said = [
        str(report.get("detail") or ""),
        f"culprit: {describe_culprit(culprit) if culprit else 'not attributed'}",
        f"signature: {report['signature']}",
        f"what to do: {advice(report, str(entry.path))}",
    ]
    failure.text = _clean("\n".join(filter(None, said)))
    return "failure"


def _clean(text: object) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text or ""))
