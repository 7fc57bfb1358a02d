"""A replay on the terminal: a line per result while it runs, and a table with what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date

from rich.console import Console
from rich.table import Table

from fuzzcompile.corpus.records import Finding
from fuzzcompile.corpus.replay.replay_engine import Result
from fuzzcompile.corpus.replay.replay_history import ReplayStatus, order, public
from fuzzcompile.corpus.replay.replay_record import Record, Records
from fuzzcompile.model.hints import format_command


def line(result: Result, number: int, total: int) -> str:
    """One result: ``2/26 F3 on 2.15.0: fixed (3 runs, 12 s): compiled is as exact as eager``."""
    replay = result.replay
    agree = _many(len(replay.runs), "run") if replay.status != ReplayStatus.FLAKY else _disagreement(replay.runs)
    finding = f"{number}/{total} {result.subject.finding.public_id}"
    return f"{finding} on {public(replay.torch)}: {replay.status} ({agree}, {replay.seconds:.0f} s): {result.why}"


def print_records(console: Console, records: Records, corpus: str) -> None:
    """The table, the counts, and what to do next; ``corpus`` is where the findings are stored."""

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
    for advice in list(_next(records, corpus)) or ["nothing: what was known still fails"]:
        say(f"next: {advice}")


def since(record: Record) -> str:
    """Since when it fails, as far as versions were tried."""
    known = record.history
    if known.affected_since is None:
        return "-"
    return f"{known.affected_since} or earlier" if known.earlier_not_tried else known.affected_since


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
    return f"{interrupted}{_many(len(records.all), 'finding')} on torch {torches}: {counts}; regressions: {back}."


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _disagreement(runs: Sequence[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(runs).items())


def _next(records: Records, corpus: str) -> Iterator[str]:
    """One line for each kind of result that asks for something, with the findings it is about."""
    newest = records.versions[-1] if records.versions else ""
    back = [record for record in records.all if record.regressions]
    if back:
        yield (
            f"{_names(back)}: was fixed and is back; `{format_command('corpus', 'show', _id(back[0]), corpus=corpus)}`"
        )
    fixed = [record for record in records.all if record.status(newest) == ReplayStatus.FIXED and record not in back]
    unmarked = [record for record in fixed if _may_be_marked(record.subject.finding, newest)]
    if unmarked:
        mark = format_command("mark", _id(unmarked[0]), "fixed", corpus=corpus)
        yield f"{_names(unmarked)}: fixed on {newest}; `{mark}` once you are sure"
    unreached = [record for record in records.all if not record.results and not record.subject.not_replayable]
    if unreached and records.builds:
        yield f"not reached: `{format_command('replay', select=tuple(map(_id, unreached)), corpus=corpus)}`"
    bare = [record for record in records.all if record.subject.reproducer is None]
    if bare:
        yield f"{_names(bare)}: no reproducer yet; `{format_command('minimize', _id(bare[0]), corpus=corpus)}`"
    for status, advice in _ADVICE.items():
        concerned = [record for record in records.all if status in map(record.status, records.versions)]
        if concerned:
            yield f"{_names(concerned)}: {status}; {advice(_id(concerned[0]), corpus)}"


def _may_be_marked(finding: Finding, version: str) -> bool:
    """Whether passing on that version is news: an older one than those on which it was seen may not be affected."""
    return finding.status in ("open", "known") and all(
        order(public(t)) <= order(version) for t in finding.torch_versions
    )


def _exported(name: str, corpus: str) -> str:
    return f"`{format_command('corpus', 'export', name, name, corpus=corpus)}` and run {name}/repro.py there"


_ADVICE: dict[ReplayStatus, Callable[[str, str], str]] = {
    ReplayStatus.DIFFERENT: lambda name, corpus: f"{_exported(name, corpus)}: it may be another bug",
    ReplayStatus.FLAKY: lambda name, corpus: (
        f"`{format_command('replay', select=name, runs=10, corpus=corpus)}` shows how often"
    ),
    ReplayStatus.ERRORED: lambda name, corpus: f"{_exported(name, corpus)} to see the whole error",
    ReplayStatus.NOT_RUN: lambda name, corpus: "run it where that device is",
}


def _names(records: list[Record]) -> str:
    return ", ".join(map(_id, records))


def _id(record: Record) -> str:
    return record.subject.finding.public_id


# A replay across versions as a table in Markdown.


def table(records: Records, command: str, today: date) -> str:
    """The page: how it was made, with which command, the table with the worst first, and what gave no answer."""
    return "\n".join(_lines(records, command, today)) + "\n"


def _lines(records: Records, command: str, today: date) -> Iterator[str]:
    yield from ("# Findings across versions of torch", "")
    yield from (f"Made on {today.isoformat()} by", "", f"    {command}", "", "on")
    yield ""
    for version in records.versions:
        build, git = records.builds[version]
        yield f"- torch {build}" + (f" ({git[:12]})" if git else "")
    yield ""
    headings = ["finding", "what", "severity", *records.versions, "since", "fixed in"]
    yield _row(headings)
    yield _row(["---"] * len(headings))
    yield from (_row(_format_markdown_cells(record, records.versions)) for record in records.all)
    yield from (
        "",
        '"Since" is the oldest version tried on which it fails, "fixed in" the first later one on which it passes.',
    )
    notes = list(_notes(records))
    yield from (("", *notes) if notes else ())


def _format_markdown_cells(record: Record, versions: list[str]) -> Iterator[str]:
    finding, subject = record.subject.finding, record.subject
    yield f"{finding.public_id} `{finding.signature}`"
    yield subject.what
    yield str(subject.severity or "-").replace("_", " ")
    for version in versions:
        status = record.status(version) or "-"
        yield f"{status}, **regression**" if version in record.regressions else status
    yield since(record)
    yield record.history.fixed_in or "-"


def _notes(records: Records) -> Iterator[str]:
    """Why where it is not plain: what gave no answer, and what failed in another way."""
    for record in records.all:
        for note in record.notes:
            yield f"- {record.subject.finding.public_id}: {note}."
        for version, result in record.results.items():
            if result.replay.status not in ("failing", "fixed"):
                yield f"- {record.subject.finding.public_id} on {version}, {result.replay.status}: {result.why}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
