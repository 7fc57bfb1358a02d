"""The proof of a culprit as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from fuzzcompile.model.contract import CulpritJson, ReportJson
from fuzzcompile.report.proof import diff_of, facts_of, has_errors, matched, step_of, tried

_MATCHED = 6  # lines of the program shown
_LINES = 30  # lines of a diff or a kernel shown


def proof_lines(culprit: CulpritJson) -> Iterator[str]:
    """What a culprit matched, how far it moved the result, and the graph before and after it."""
    yield from (f"matched {line}" for line in matched(culprit)[:_MATCHED])
    step = step_of(culprit)
    if step:
        yield f"moves the result, in units of its size, by {step}"
    for fact in facts_of(culprit):
        yield f"{fact.label}:" if fact.is_block else f"{fact.label}: {fact.text}"
        if fact.is_block:
            yield from (f"  {line}" for line in _cut(fact.text.splitlines()))
    diff = diff_of(culprit)
    if diff:
        yield "graph before (-) and after (+):"
        yield from (f"  {line}" for line in _cut(diff))


def ablation_table(report: ReportJson) -> Table:
    """Each ablation, and whether it removed the divergence."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  tried", overflow="fold")
    table.add_column("bug gone", no_wrap=True)
    with_errors = has_errors(report)
    if with_errors:
        table.add_column("error left", justify="right", no_wrap=True)
    for row in tried(report):
        errors = [row.error] if with_errors else []
        table.add_row(Text(f"  {row.toggle.replace('`', '')}"), "yes" if row.repairs else "no", *errors)
    return table


def _cut(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    shown = list(lines[:_LINES])
    return [*shown, f"... and {len(lines) - _LINES} more lines (--json has all)"] if len(lines) > _LINES else shown
