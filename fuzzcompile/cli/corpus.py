"""``fuzzcompile corpus``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options

if TYPE_CHECKING:
    from fuzzcompile.corpus import Finding


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
