"""``fuzzcompile corpus``: what is in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from fuzzcompile.commands.refresh import Refreshed
    from fuzzcompile.corpus import Finding, FindingSummary, Reproducer, Umbrella
    from fuzzcompile.worker.conditions import Conditions


@click.group()
def corpus() -> None:
    """List, show, export and import the findings of the corpus."""


@corpus.command("list")
@click.option("--all", "every", is_flag=True, help="Also list each of those that are counted in one line, by group.")
@options.corpus
@options.json_output
def list_findings(every: bool, location: str | None, as_json: bool) -> int:
    """List the findings, one per root cause, the worst first.

    Layouts that nobody is hurt by and calls that only eager refuses are counted in one line. --json lists all.
    """
    from fuzzcompile.corpus import Store

    with Store.open(location, create=False) as store:
        findings = store.summaries()
        groups = {group.name: group for group in store.umbrellas()}
        counters = None if as_json else store.counters()
    if as_json:
        for stored in findings:
            click.echo(json.dumps(_as_json(stored, groups)))
        return 0
    _print_findings(findings, groups, every=every)
    if counters is not None:
        click.echo(f"{counters.cases} cases, {counters.runs} runs, {len(findings)} findings.")
    return 0


@corpus.command()
@click.argument("finding")
@options.corpus
@options.json_output
def show(finding: str, location: str | None, as_json: bool) -> int:
    """Show a finding: its report, its proof and its reproducer."""
    from fuzzcompile.corpus import Store

    with Store.open(location, create=False) as store:
        stored = store.finding(finding)
        reproducer = store.best_reproducer(stored.id)
        group = store.umbrella(stored.umbrella)
        related = [vars(link) for link in store.related(stored.id)]
        replays = [
            {"torch": replay.torch, "status": replay.status, "when": replay.created.isoformat()}
            for replay in store.replays(stored.id)
        ]
    if as_json:
        groups = {} if group is None else {group.name: group}
        whole = {"report": stored.report, "source": stored.source, "reproducer": _reproducer_as_json(reproducer)}
        seen = {"related": related, "replays": replays}
        click.echo(json.dumps({**_as_json(stored, groups), **whole, **seen}, allow_nan=False))
        return 0
    _print_finding(finding, stored, reproducer, group)
    return 0


@corpus.command()
@click.argument("finding")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@options.corpus
def export(finding: str, folder: Path, location: str | None) -> int:
    """Write a finding's case, reproducer and report as files into FOLDER."""
    from fuzzcompile.corpus import Store

    with Store.open(location, create=False) as store:
        for path in store.export(finding, folder):
            click.echo(str(path))
    return 0


@corpus.command()
@click.argument("findings", nargs=-1, metavar="[FINDING]...")
@click.option(
    "--drafts", type=click.Path(path_type=Path, file_okay=False), help="Write their issue drafts anew into this folder."
)
@options.json_output
@options.conditions
@options.corpus
def refresh(
    findings: tuple[str, ...], drafts: Path | None, as_json: bool, conditions: Conditions, location: str | None
) -> int:
    """Judge findings again on the torch at hand, all of them if none is named.

    Of a finding that still shows, the report (with its signature, cause and severity), the reproducer and the script
    for an issue with its ladder of backends are stored anew. One that shows no more is left as it is.
    """
    from dataclasses import asdict

    from fuzzcompile.commands.refresh import findings_named
    from fuzzcompile.commands.refresh import refresh as judge_again
    from fuzzcompile.corpus import Store

    counts: Counter[str] = Counter()
    with Store.open(location, create=False) as store:
        names = findings_named(store, findings)

        def start(name: str) -> None:
            click.echo(f"[{names.index(name) + 1}/{len(names)}] judging {name} ...", err=True)

        for refreshed in judge_again(store, names, conditions, drafts=drafts, on_start=start):
            counts[refreshed.result] += 1
            click.echo(f"  {_became(refreshed)}", err=True)
            if as_json:
                click.echo(json.dumps(asdict(refreshed)))
    click.echo(", ".join(f"{count} {result}" for result, count in counts.items()) or "No findings yet.", err=True)
    return 3 if counts["not judged"] else 0


def _became(refreshed: Refreshed) -> str:
    """One line on what became of a finding."""
    where = "" if refreshed.kept == refreshed.finding else f", merged into {refreshed.kept}"
    note = f" ({refreshed.note})" if refreshed.note else ""
    return f"{refreshed.finding}: {refreshed.result}{where}, {refreshed.signature}{note}"


def _print_findings(findings: Sequence[FindingSummary], groups: Mapping[str, Umbrella], *, every: bool) -> None:
    from fuzzcompile.reporting.lists import counted_line, divided
    from fuzzcompile.reporting.verdict import report_console

    console = report_console()
    shown, counted = divided(findings)
    if not findings:
        click.echo("No findings yet.")
    if shown:
        console.print(_table(shown, groups))
    if counted and not every:
        click.echo(f"{'And ' if shown else ''}{counted_line(counted, '--all lists them')}.")
    for name in sorted({stored.umbrella or "" for stored in counted}) if every else ():
        members = [stored for stored in counted if (stored.umbrella or "") == name]
        click.echo(f"\n{_group_line(name, len(members), groups.get(name))}")
        console.print(_table(members, groups))


def _table(findings: Sequence[FindingSummary], groups: Mapping[str, Umbrella]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from fuzzcompile.reporting.verdict import name_of

    columns = ("finding", "severity", "verdict", "culprit", "proved", "hits", "torch", "device", "reproducer")
    said = [_mark_of(stored, groups) for stored in findings]
    table = Table(*columns, *(("mark",) if any(said) else ()), box=None)
    for stored, mark in zip(findings, said, strict=True):
        number = stored.reproducer_lines
        lines = "none yet" if number is None else f"{number} line{'s' if number != 1 else ''}"
        cells = (
            stored.public_id,
            stored.severity or "unknown",
            stored.verdict,
            name_of(stored.culprit or {}),
            "yes" if stored.is_proved else "no",
            str(stored.hits),
            ", ".join(stored.torch_versions),
            ", ".join(stored.devices),
            lines,
            *((mark,) if any(said) else ()),
        )
        table.add_row(*map(escape, cells))
    return table


def _mark_of(stored: FindingSummary, groups: Mapping[str, Umbrella]) -> str:
    """What a person said of a finding, or else of its group."""
    group = groups.get(stored.umbrella or "")
    if stored.status == "open" and group is not None:
        return "" if group.status == "open" else " ".join(filter(None, (group.status, group.issue)))
    return (
        "" if stored.status == "open" else " ".join(filter(None, (stored.status, stored.duplicate_of or stored.issue)))
    )


def _group_line(name: str, members: int, group: Umbrella | None) -> str:
    mark = "" if group is None or group.status == "open" else ", ".join(filter(None, (group.status, group.issue)))
    return f"{name or 'no group'} ({members}{f'; {mark}' if mark else ''})"


def _print_finding(asked: str, stored: Finding, reproducer: Reproducer | None, group: Umbrella | None) -> None:
    from fuzzcompile.contract import told
    from fuzzcompile.reporting.verdict import print_report, report_console

    if asked.strip().upper() != stored.public_id and asked.strip().upper()[:1] == "F" and asked.strip()[1:].isdigit():
        click.echo(f"{asked.strip().upper()} was merged into {stored.public_id}: the same bug.")
    click.echo(f"{stored.public_id}  {stored.severity or ''}  {stored.signature}")
    versions, devices = ", ".join(stored.torch_versions), ", ".join(stored.devices)
    click.echo(f"{stored.hits} hits, first seen {stored.first_seen:%Y-%m-%d}, torch {versions}, compiled for {devices}")
    groups = {} if group is None else {group.name: group}
    if mark := _mark_of(stored, groups):
        click.echo(f"Marked: {mark}{f' ({stored.note})' if stored.note else ''}")
    elif stored.note:
        click.echo(f"Note: {stored.note}")
    if group is not None:
        click.echo(f"One of the group {group.name}; all of it: fuzzcompile corpus list --all")
    print_report(report_console(), stored.report, proof=True, name=stored.public_id)
    click.echo("")
    if reproducer is None:
        click.echo(f"No reproducer yet; the case as found (next: fuzzcompile minimize {stored.public_id}):\n")
        click.echo(stored.source)
    else:
        state = "confirmed" if reproducer.confirmed else "not confirmed"
        target = told(reproducer.report) if reproducer.report is not None else None
        where = "" if target is None else f" for {target}, on no GPU"
        click.echo(f"Reproducer ({state} in a clean process{where}):\n")
        click.echo(reproducer.source)


def _as_json(stored: FindingSummary, groups: Mapping[str, Umbrella]) -> dict[str, object]:
    group = groups.get(stored.umbrella or "")
    return {
        "finding": stored.public_id,
        "signature": stored.signature,
        "severity": stored.severity,
        "verdict": stored.verdict,
        "status": stored.status,
        "issue": stored.issue,
        "note": stored.note,
        "duplicate_of": stored.duplicate_of,
        "umbrella": stored.umbrella,
        "umbrella_status": None if group is None else group.status,
        "umbrella_issue": None if group is None else group.issue,
        "hits": stored.hits,
        "culprit": stored.culprit,
        "torch": stored.torch_versions,
        "devices": stored.devices,
        "first_seen": stored.first_seen.isoformat(),
        "last_seen": stored.last_seen.isoformat(),
        "reproducer_lines": stored.reproducer_lines,
        "confirmed": stored.confirmed,
    }


def _reproducer_as_json(reproducer: Reproducer | None) -> dict[str, object] | None:
    """The reproducer without its report, which is the finding's if it is confirmed."""
    if reproducer is None:
        return None
    left_out = ("report", "environment")
    return {name: value for name, value in vars(reproducer).items() if name not in left_out}
