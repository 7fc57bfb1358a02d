"""The ledger as files: every graph of one compile, and what every rewrite did to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.compiler.graphtext import difference, text_of, user_lines
from fuzzcompile.compiler.ledger import Frame, GraphRecord, Label, Ledger, Rewrite

_ALL = 100_000  # lines of a diff: files have room


def dump_ledger(ledger: Ledger, folder: Path) -> None:
    """Write ``index.md``, and a folder for each graph and stage: the graph at its start, and each rewrite.

    ``folder`` is made if need be; files of the same names are replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What the compiler did", "", *_summary(ledger)]
    names = _Names()
    for frame in ledger.frames:
        lines += ["", f"## Graph {frame.index}", ""]
        for record in frame.records:
            if record.snapshots:
                lines += _dump_record(frame, record, folder, names.of(frame, record))
        if not frame.records:
            lines.append("No stage ran.")
    lines += _coverage(ledger)
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Names:
    """Folder names of records; a stage that runs twice over one graph gets a number."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, frame: Frame, record: GraphRecord) -> str:
        name = f"graph{frame.index}-{record.stage}-{record.direction}"
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}-{self._seen[name]}"


def _summary(ledger: Ledger) -> Iterator[str]:
    rewrites = len(ledger.rewrites())
    yield f"{len(ledger.frames)} graphs captured, {rewrites} rewrites that changed one."
    yield from (f"Graph break: {why}" for why in ledger.graph_breaks)
    if ledger.failed_in is not None:
        yield f"An exception rose in {_shown(ledger.failed_in)}."
    yield from (str(unseen) for unseen in ledger.unseen)


def _dump_record(frame: Frame, record: GraphRecord, folder: Path, name: str) -> Iterator[str]:
    """Write one record's files, and yield its part of the index."""
    inside = folder / name
    inside.mkdir(exist_ok=True)
    yield f"### {record.stage}, {record.direction}"
    yield ""
    start = inside / "00-start.txt"
    _write(start, text_of(record.snapshots[0]))
    yield f"Starts as [{name}/{start.name}]({name}/{start.name}), {_count(record, 0)} nodes."
    yield ""
    if not record.rewrites:
        yield "No rewrite changed it."
        yield ""
        return
    yield "| # | rewrite | source | site | nodes after | files |"
    yield "|---|---|---|---|---|---|"
    for number, rewrite in enumerate(record.rewrites, 1):
        stem = f"{number:02}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', rewrite.label.rewrite)[:60]}"
        _write(inside / f"{stem}.diff", _difference(record, rewrite))
        _write(inside / f"{stem}.txt", text_of(record.snapshots[rewrite.after]))
        files = ", ".join(f"[{kind}]({name}/{stem}.{ending})" for kind, ending in (("diff", "diff"), ("graph", "txt")))
        label = rewrite.label
        within = f" in {label.pass_name}" if label.pass_name and label.pass_name != label.rewrite else ""
        source = f"{label.source}:{label.line}" if label.source else "-"
        yield (
            f"| {number} | {_cell(label.rewrite)}{_cell(within)} | {_cell(source)} | {_cell(rewrite.site or '-')} "
            f"| {_count(record, rewrite.after)} | {files} |"
        )
    yield ""


def _difference(record: GraphRecord, rewrite: Rewrite) -> list[str]:
    before, after = record.snapshots[rewrite.before], record.snapshots[rewrite.after]
    matched = [
        f"# matched {entry['source'] or 'no known line'}: {entry['code'] or ''} ({', '.join(entry['nodes'])})"
        for entry in user_lines(before, rewrite.nodes)
    ]
    return [f"# {_shown(rewrite.label)}", *matched, *difference(before, after, most=_ALL)]


def _coverage(ledger: Ledger) -> Iterator[str]:
    """Matches that came to nothing: what was refused by its own check, or vetoed."""
    others = [(label, outcome, count) for (label, outcome), count in ledger.coverage.items() if outcome != "fired"]
    if not others:
        return
    yield from ("", "## Matched and not applied", "", "| rule | outcome | times |", "|---|---|---|")
    for label, outcome, count in others:
        yield f"| {_cell(_shown(label))} | {outcome} | {count} |"


def _count(record: GraphRecord, index: int) -> int:
    return len(list(record.snapshots[index].graph.nodes))


def _shown(label: Label) -> str:
    place = f" ({label.source}:{label.line})" if label.source else ""
    return f"{label.rewrite} in {label.stage}{place}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
