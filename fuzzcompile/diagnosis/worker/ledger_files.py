"""The ledger as files: every graph of one compile, and what every rewrite did to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.compiler.graph_text import diff_graphs, format_graph, list_user_lines
from fuzzcompile.compiler.watch.ledger import GraphRecord, Label, Ledger, Rewrite

_ALL = 100_000  # lines of a diff: files have room


def dump_ledger(ledger: Ledger, folder: Path) -> None:
    """Write ``index.md``, and a folder for each graph and stage: the graph at its start, and each rewrite.

    ``folder`` is made if need be; files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What the compiler did", "", *_write_summary(ledger)]
    seen: Counter[str] = Counter()
    for frame in ledger.frames:
        lines += ["", f"## Graph {frame.index}", ""]
        for record in frame.records:
            if record.snapshots:
                name = f"graph{frame.index}-{record.stage}-{record.direction}"
                seen[name] += 1  # a stage may run twice over one graph
                lines += _dump_record(record, folder, name if seen[name] == 1 else f"{name}-{seen[name]}")
        if not frame.records:
            lines.append("No stage ran.")
    lines += _format_coverage(ledger)
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_summary(ledger: Ledger) -> Iterator[str]:
    rewrites = len(ledger.list_rewrites())
    yield f"{len(ledger.frames)} graphs captured, {rewrites} rewrites that changed one."
    yield from (f"Graph break: {why}" for why in ledger.graph_breaks)
    if ledger.failed_in is not None:
        yield f"An exception rose in {_format_label(ledger.failed_in)}."
    yield from (str(unseen) for unseen in ledger.unseen)


def _dump_record(record: GraphRecord, folder: Path, name: str) -> Iterator[str]:
    inside = folder / name
    inside.mkdir(exist_ok=True)
    start = f"{name}/00-start.txt"
    _write_lines(folder / start, format_graph(record.snapshots[0]))
    yield from (f"### {record.stage}, {record.direction}", "")
    yield from (f"Starts as [{start}]({start}), {len(record.snapshots[0].graph.nodes)} nodes.", "")
    if not record.rewrites:
        yield from ("No rewrite changed it.", "")
        return
    yield from ("| # | rewrite | source | site | nodes after | files |", "|---|---|---|---|---|---|")
    for number, rewrite in enumerate(record.rewrites, 1):
        stem = f"{number:02}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', rewrite.label.rewrite)[:60]}"
        _write_lines(inside / f"{stem}.diff", _format_difference(record, rewrite))
        _write_lines(inside / f"{stem}.txt", format_graph(record.snapshots[rewrite.after]))
        label, nodes = rewrite.label, len(record.snapshots[rewrite.after].graph.nodes)
        within = f" in {label.pass_name}" if label.pass_name and label.pass_name != label.rewrite else ""
        source = f"{label.source}:{label.line}" if label.source else "-"
        yield (
            f"| {number} | {_format_cell(label.rewrite)}{_format_cell(within)} | {_format_cell(source)} | "
            f"{_format_cell(rewrite.site or '-')} "
            f"| {nodes} | [diff]({name}/{stem}.diff), [graph]({name}/{stem}.txt) |"
        )
    yield ""


def _format_difference(record: GraphRecord, rewrite: Rewrite) -> list[str]:
    before, after = record.snapshots[rewrite.before], record.snapshots[rewrite.after]
    matched = [
        f"# matched {entry['source'] or 'no known line'}: {entry['code'] or ''} ({', '.join(entry['nodes'])})"
        for entry in list_user_lines(before, rewrite.nodes)
    ]
    return [f"# {_format_label(rewrite.label)}", *matched, *diff_graphs(before, after, most=_ALL)]


def _format_coverage(ledger: Ledger) -> Iterator[str]:
    """Matches that came to nothing: what was refused by its own check, or vetoed."""
    others = [(label, outcome, count) for (label, outcome), count in ledger.coverage.items() if outcome != "fired"]
    if not others:
        return
    yield from ("", "## Matched and not applied", "", "| rule | outcome | times |", "|---|---|---|")
    for label, outcome, count in others:
        yield f"| {_format_cell(_format_label(label))} | {outcome} | {count} |"


def _format_label(label: Label) -> str:
    place = f" ({label.source}:{label.line})" if label.source else ""
    return f"{label.rewrite} in {label.stage}{place}"


def _format_cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
