"""Stored findings as text and as JSON: the output of ``fuzzcompile corpus list`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import click

from fuzzcompile.model import hints

if TYPE_CHECKING:
    from fuzzcompile.corpus.models import Umbrella
    from fuzzcompile.corpus.records import Finding, FindingSummary, Reproducer


def print_findings(
    findings: Sequence[FindingSummary], groups: Mapping[str, Umbrella], *, corpus: str, every: bool
) -> None:
    """Print a table, the worst first; minor findings are counted in one line, or listed by group."""
    from fuzzcompile.report.circumstances import counted_line, divided

    shown, counted = divided(findings)
    if not findings:
        click.echo("No findings yet.")
    if shown:
        click.echo("\n".join(_make_table(shown, groups)))
    if counted and not every:
        everything = hints.format_command("corpus", "list", all=True, corpus=corpus)
        click.echo(f"{'And ' if shown else ''}{counted_line(counted, everything)}")
    for name in sorted({stored.umbrella or "" for stored in counted}) if every else ():
        members = [stored for stored in counted if (stored.umbrella or "") == name]
        group = groups.get(name)
        mark = "" if group is None or group.status == "open" else ", ".join(filter(None, (group.status, group.issue)))
        click.echo(f"\n{name or 'no group'} ({len(members)}{f'; {mark}' if mark else ''})")
        click.echo("\n".join(_make_table(members, groups)))


_COLUMNS = (
    "finding", "severity", "verdict", "culprit", "proved", "hits", "torch", "device", "reproducer", "drawn from",
    "mark",
)  # fmt: skip


def _make_table(findings: Sequence[FindingSummary], groups: Mapping[str, Umbrella]) -> Iterator[str]:
    return format_columns([_COLUMNS, *(_format_cells(stored, groups) for stored in findings)])


def format_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines of equal columns; of thousands, a table of rich takes seconds."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _format_cells(stored: FindingSummary, groups: Mapping[str, Umbrella]) -> tuple[str, ...]:
    number, culprit = stored.reproducer_lines, "not attributed"
    if known := stored.culprit:
        file = (known.get("source") or "").rpartition("/")[2]
        place = f"{file}:{known.get('line')}" if file else known.get("stage")
        culprit = f"{known.get('rewrite') or 'unknown'} ({place})"
    return (
        stored.public_id,
        stored.severity or "unknown",
        stored.verdict,
        culprit,
        "yes" if stored.is_proved else "no",
        str(stored.hits),
        ", ".join(stored.torch_versions),
        ", ".join(stored.devices),
        "none yet" if number is None else f"{number} line{'s' if number != 1 else ''}",
        stored.drawn_from or "not recorded",
        "; ".join(filter(None, (_format_mark(stored, groups), "" if stored.trusted else "not trusted"))),
    )


def _format_mark(stored: FindingSummary, groups: Mapping[str, Umbrella]) -> str:
    group = groups.get(stored.umbrella or "")
    marked = group if stored.status == "open" and group is not None else stored
    about = (stored.duplicate_of or stored.issue) if marked is stored else marked.issue
    return "" if marked.status == "open" else " ".join(filter(None, (marked.status, about)))


def print_finding(
    asked: str, stored: Finding, reproducer: Reproducer | None, group: Umbrella | None, *, corpus: str
) -> None:
    """Print a finding that was ``asked`` for by some name, its report, and its reproducer or else its case."""
    subject = hints.CommandSubject(stored.public_id, {"corpus": corpus})
    from fuzzcompile.model.contract import read_target
    from fuzzcompile.report.circumstances import seen_on_and_next
    from fuzzcompile.report.verdict_text import print_report, report_console

    if asked.strip().upper() != stored.public_id and asked.strip().upper()[:1] == "F" and asked.strip()[1:].isdigit():
        click.echo(f"{asked.strip().upper()} was merged into {stored.public_id}: the same bug.")
    click.echo(f"{stored.public_id}  {stored.severity or ''}  {stored.signature}")
    versions, devices = ", ".join(stored.torch_versions), ", ".join(stored.devices)
    click.echo(f"{stored.hits} hits, first seen {stored.first_seen:%Y-%m-%d}, torch {versions}, compiled for {devices}")
    click.echo(seen_on_and_next(stored.machines, subject))
    click.echo(f"Drawn from: {stored.drawn_from or 'not recorded'}")
    if not stored.trusted:
        trusting = hints.format_command("corpus", "trust", stored.public_id, corpus=corpus)
        click.echo(f"It comes from another corpus: read the code below before you trust it with `{trusting}`.")
    groups = {} if group is None else {group.name: group}
    if mark := _format_mark(stored, groups):
        click.echo(f"Marked: {mark}{f' ({stored.note})' if stored.note else ''}")
    elif stored.note:
        click.echo(f"Note: {stored.note}")
    if group is not None:
        listing = hints.format_command("corpus", "list", all=True, corpus=corpus)
        click.echo(f"One of the group {group.name}; all of it: {listing}")
    print_report(report_console(), stored.report, proof=True, name=subject)
    click.echo("")
    if reproducer is None:
        click.echo(f"No reproducer yet; the case as found (next: {subject.format_command('minimize')}):\n")
        click.echo(format_readable(stored.source))
    else:
        state = "confirmed" if reproducer.confirmed else "not confirmed"
        target = read_target(reproducer.report) if reproducer.report is not None else None
        where = "" if target is None else f" for {target}, on no GPU"
        short = reproducer.shown or {}
        if (plain := short.get("plain")) is not None and short.get("plain_shows", True):
            click.echo(f"Script for an issue, and what it prints:\n\n{format_readable(plain)}")
            click.echo(format_readable(f"{short.get('plain_output') or ''}\n"))
        click.echo(f"Reproducer, with an exit status ({state} in a clean process{where}):\n")
        click.echo(format_readable(reproducer.source))
        if not stored.trusted and reproducer.source != stored.source:
            click.echo("The case, which `minimize` runs:\n")
            click.echo(format_readable(stored.source))


def format_readable(source: str) -> str:
    """A source as it is, but for what would change how a terminal shows it, and could hide code from its reader."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in source
    )


def make_finding_json(stored: FindingSummary, groups: Mapping[str, Umbrella]) -> dict[str, object]:
    """A finding in one JSON object, without its report."""
    from fuzzcompile.corpus.records import FindingSummary

    group = groups.get(stored.umbrella or "")
    left_out = ("id", "searched", "queries", "confidence", "first_seen", "last_seen", "torch_versions", "machines")
    columns = (column.name for column in fields(FindingSummary) if column.name not in left_out)
    return {
        "finding": stored.public_id,
        **{name: getattr(stored, name) for name in columns},
        "umbrella_status": None if group is None else group.status,
        "umbrella_issue": None if group is None else group.issue,
        "torch": stored.torch_versions,
        "first_seen": stored.first_seen.isoformat(),
        "last_seen": stored.last_seen.isoformat(),
        "machines": stored.machines.count,
        "second_machine": stored.machines.second_machine,
        "processors": stored.machines.processors,
        "not_on_processors": stored.machines.clean_processors,
    }


def make_reproducer_json(reproducer: Reproducer | None) -> dict[str, object] | None:
    """The reproducer without its report, which is the finding's if it is confirmed."""
    kept = vars(reproducer).items() if reproducer is not None else ()
    return {name: value for name, value in kept if name not in ("report", "environment")} or None
