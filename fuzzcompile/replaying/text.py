"""A replay on the terminal: a line per result while it runs, and a table with what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from fuzzcompile.replaying.engine import Result
from fuzzcompile.replaying.record import Record, Records
from fuzzcompile.replaying.status import Status
from fuzzcompile.replaying.versions import public


def line(result: Result) -> str:
    """One result: ``F3 on 2.15.0: fixed (3 runs, 12 s): compiled is as exact as eager``."""
    replay = result.replay
    agree = f"{len(replay.runs)} runs" if replay.status != Status.FLAKY else _disagreement(replay.runs)
    finding = result.subject.finding.public_id
    return f"{finding} on {public(replay.torch)}: {replay.status} ({agree}, {replay.seconds:.0f} s): {result.why}"


def print_records(console: Console, records: Records) -> None:
    """The table, the counts, and what to do next."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    several = len(records.versions) > 1
    headings = ["finding", "severity", *records.versions, *(("since", "fixed in") if several else ())]
    table = Table(*headings, "what", box=None)
    for record in records.all:
        table.add_row(*_cells(record, records.versions, several=several))
    console.print(table)
    say(_counted(records))
    for record in records.all:
        for note in record.notes if several or record.subject.not_replayable else ():
            say(f"{record.subject.finding.public_id}: {note}.")
    for advice in _next(records):
        say(f"next: {advice}")


def since(record: Record) -> str:
    """Since when it fails, as far as versions were tried."""
    told = record.history
    if told.affected_since is None:
        return "-"
    return f"{told.affected_since} or earlier" if told.earlier_not_tried else told.affected_since


def _cells(record: Record, versions: list[str], *, several: bool) -> Iterator[str]:
    yield record.subject.finding.public_id
    yield str(record.subject.severity or "-")
    for version in versions:
        status = record.status(version) or "-"
        yield f"{status}, REGRESSION" if version in record.regressions else status
    if several:
        yield from (since(record), record.history.fixed_in or "-")
    yield record.subject.what


def _counted(records: Records) -> str:
    torches = ", ".join(version for version, _ in records.builds.values()) or "no torch"
    counts = ", ".join(f"{count} {status}" for status, count in records.counts.items()) or "nothing was run"
    interrupted = "Interrupted; what is shown is stored. " if records.interrupted else ""
    back = sum(bool(record.regressions) for record in records.all)
    return f"{interrupted}{len(records.all)} findings on torch {torches}: {counts}; regressions: {back}."


def _disagreement(runs: Sequence[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(runs).items())


def _next(records: Records) -> Iterator[str]:
    """One line for each kind of result that asks for something, with the findings it is about."""
    newest = records.versions[-1] if records.versions else ""
    back = [record for record in records.all if record.regressions]
    if back:
        yield f"{_names(back)}: was fixed and is back; `fuzzcompile corpus show {_id(back[0])}`"
    fixed = [record for record in records.all if record.status(newest) == Status.FIXED and record not in back]
    unmarked = [record for record in fixed if record.subject.finding.status in ("open", "known")]
    if unmarked:
        yield f"{_names(unmarked)}: fixed on {newest}; `fuzzcompile mark {_id(unmarked[0])} fixed` once you are sure"
    for status, advice in _ADVICE.items():
        concerned = [record for record in records.all if status in map(record.status, records.versions)]
        if concerned:
            yield f"{_names(concerned)}: {status}; " + advice.format(id=_id(concerned[0]))


_ADVICE = {
    Status.DIFFERENT: "`fuzzcompile corpus export {id} DIR` and run DIR/repro.py there: it may be another bug",
    Status.FLAKY: "`fuzzcompile replay --select {id} --runs 10` shows how often",
    Status.ERRORED: "`fuzzcompile corpus export {id} DIR` and run DIR/repro.py there to see the whole error",
    Status.NOT_RUN: "run it where that device is",
}


def _names(records: list[Record]) -> str:
    return ", ".join(map(_id, records))


def _id(record: Record) -> str:
    return record.subject.finding.public_id
