"""``fuzzcompile corpus``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options

if TYPE_CHECKING:
    from fuzzcompile.commands.refresh import Refreshed
    from fuzzcompile.corpus import Finding
    from fuzzcompile.worker.conditions import Conditions


@click.group()
def corpus() -> None:
    """List, show and export the findings of the corpus."""


@corpus.command("list")
@options.corpus
@options.json_output
def list_findings(location: str | None, as_json: bool) -> int:
    """List the findings, one per root cause."""
    from rich.console import Console
    from rich.table import Table

    from fuzzcompile.corpus import Store
    from fuzzcompile.reporting.verdict import name_of

    with Store.open(location, create=False) as store:
        findings = store.findings()
        counters = store.counters()
        best = {stored.public_id: store.best_reproducer(stored.public_id) for stored in findings}
    if as_json:
        for stored in findings:
            click.echo(json.dumps(_as_json(stored)))
        return 0
    table = Table("finding", "verdict", "culprit", "hits", "torch", "device", "reproducer", box=None)
    for stored in findings:
        reproducer = best[stored.public_id]
        lines = f"{reproducer.lines} lines" if reproducer is not None else "none yet"
        table.add_row(
            stored.public_id,
            stored.verdict,
            name_of(stored.culprit or {}),
            str(stored.hits),
            ", ".join(stored.torch_versions),
            ", ".join(stored.devices),
            lines,
        )
    Console().print(table if findings else "No findings yet.")
    click.echo(f"{counters.cases} cases, {counters.runs} runs, {counters.findings} findings.")
    return 0


@corpus.command()
@click.argument("finding")
@options.corpus
def show(finding: str, location: str | None) -> int:
    """Show a finding: its report, its proof and its reproducer."""
    from fuzzcompile.contract import told
    from fuzzcompile.corpus import Store
    from fuzzcompile.reporting.verdict import print_report, report_console

    with Store.open(location, create=False) as store:
        stored = store.finding(finding)
        reproducer = store.best_reproducer(finding)
    click.echo(f"{stored.public_id}  {stored.signature}")
    versions, devices = ", ".join(stored.torch_versions), ", ".join(stored.devices)
    click.echo(f"{stored.hits} hits, first seen {stored.first_seen:%Y-%m-%d}, torch {versions}, compiled for {devices}")
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


def _as_json(stored: Finding) -> dict[str, object]:
    return {
        "finding": stored.public_id,
        "signature": stored.signature,
        "verdict": stored.verdict,
        "hits": stored.hits,
        "culprit": stored.culprit,
        "torch": stored.torch_versions,
        "devices": stored.devices,
        "first_seen": stored.first_seen.isoformat(),
    }
