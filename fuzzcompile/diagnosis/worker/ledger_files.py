"""The ledger as files: every graph of one compile, and what every rewrite did to it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fuzzcompile.compiler.graph_text import diff_graphs, format_graph, list_user_lines
from fuzzcompile.compiler.watch.ledger import GraphRecord, Ledger, Rewrite
from fuzzcompile.model.package_files import get_template

_ALL = 100_000  # lines of a diff: files have room


def dump_ledger(ledger: Ledger, folder: Path) -> None:
    """Write ``index.md``, and a folder for each graph and stage: the graph at its start, and each rewrite.

    ``folder`` is made if need be; files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen: Counter[str] = Counter()
    graphs = []
    for frame in ledger.frames:
        stages = []
        for record in frame.records:
            if record.snapshots:
                name = f"graph{frame.index}-{record.stage}-{record.direction}"
                seen[name] += 1  # a stage may run twice over one graph
                name = name if seen[name] == 1 else f"{name}-{seen[name]}"
                stages.append((name, record, _dump_record(record, folder / name)))
        graphs.append((frame, stages))
    # Matches that came to nothing: what was refused by its own check, or vetoed.
    others = [(label, outcome, count) for (label, outcome), count in ledger.coverage.items() if outcome != "fired"]
    index = get_template("reports/ledger.md.j2").render(ledger=ledger, graphs=graphs, others=others)
    (folder / "index.md").write_text(index, encoding="utf-8")


def _dump_record(record: GraphRecord, folder: Path) -> list[tuple[Rewrite, str]]:
    """Write the graph at its start and each rewrite; the rewrites with the names of their files."""
    folder.mkdir(exist_ok=True)
    written = []
    texts = {"00-start.txt": format_graph(record.snapshots[0])}
    for number, rewrite in enumerate(record.rewrites, 1):
        stem = f"{number:02}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', rewrite.label.rewrite)[:60]}"
        before, after, label = record.snapshots[rewrite.before], record.snapshots[rewrite.after], rewrite.label
        place = f" ({label.source}:{label.line})" if label.source else ""
        matched = [
            f"# matched {entry['source'] or 'no known line'}: {entry['code'] or ''} ({', '.join(entry['nodes'])})"
            for entry in list_user_lines(before, rewrite.nodes)
        ]
        texts[f"{stem}.diff"] = [
            f"# {label.rewrite} in {label.stage}{place}",
            *matched,
            *diff_graphs(before, after, most=_ALL),
        ]
        texts[f"{stem}.txt"] = format_graph(after)
        written.append((rewrite, stem))
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written
