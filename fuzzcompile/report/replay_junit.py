"""A replay as JUnit XML: a test case per finding and version of torch."""

from __future__ import annotations

from collections.abc import Iterator

from junitparser import Error, Failure, Skipped, TestCase

from fuzzcompile.corpus.replay.engine import Result
from fuzzcompile.corpus.replay.record import Record, Records
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.report.xml import clean, document, result


def junit_xml(records: Records) -> bytes:
    """The document: regressions fail, and so does each failing finding; what gives no answer is an error.

    Skipped are bugs that a person has marked as known, and what was not run.
    """
    return document(case for record in records.all for case in _cases(record))


def _cases(record: Record) -> Iterator[TestCase]:
    finding = record.subject.finding
    name = f"{finding.public_id} {finding.signature}"
    if record.subject.not_replayable is not None:
        skipped = TestCase(clean(name), "fuzzcompile.replay")
        skipped.result = [result(Skipped, record.subject.not_replayable)]
        yield skipped
    for version, replayed in record.results.items():
        case = TestCase(clean(name), clean(f"torch-{version}"), replayed.replay.seconds)
        case.result = list(_outcome(record, version, replayed))
        case.system_out = clean(replayed.replay.output)
        yield case


def _outcome(record: Record, version: str, replayed: Result) -> Iterator[Error | Failure | Skipped]:
    status, finding = Status(replayed.replay.status), record.subject.finding
    message = f"{status}: {replayed.why}"
    if version in record.regressions:
        yield result(Failure, f"regression, {message}", "regression", replayed.replay.output)
    elif status is Status.NOT_RUN:
        yield result(Skipped, message)
    elif status is Status.ERRORED:
        yield result(Error, message, str(status), replayed.replay.output)
    elif status is not Status.FIXED and finding.status in ("known", "dup", "invalid", "wontfix"):
        yield result(Skipped, f"{finding.status}, {message}")
    elif status is not Status.FIXED:
        yield result(Failure, message, str(status), replayed.replay.output)
