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
    """Look into the corpus of findings."""


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
        best = {found.public_id: store.best_reproducer(found.public_id) for found in findings}
    if as_json:
        for found in findings:
            click.echo(json.dumps(_as_json(found)))
        return 0
    table = Table("finding", "verdict", "culprit", "hits", "torch", "reproducer", box=None)
    for found in findings:
        reproducer = best[found.public_id]
        lines = f"{reproducer.lines} lines" if reproducer is not None else "none yet"
        table.add_row(
            found.public_id,
            found.verdict,
            name_of(found.culprit or {}),
            str(found.hits),
            ", ".join(found.torch_versions),
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
    from fuzzcompile.corpus import Store
    from fuzzcompile.reporting.verdict import print_report, report_console

    with Store.open(location, create=False) as store:
        found = store.finding(finding)
        reproducer = store.best_reproducer(finding)
    click.echo(f"{found.public_id}  {found.signature}")
    click.echo(f"{found.hits} hits, first seen {found.first_seen:%Y-%m-%d}, torch {', '.join(found.torch_versions)}")
    print_report(report_console(), found.report, proof=True, name=found.public_id)
    click.echo("")
    if reproducer is None:
        click.echo(f"No reproducer yet; the case as found (next: fuzzcompile minimize {found.public_id}):\n")
        click.echo(found.source)
    else:
        click.echo(f"Reproducer ({'confirmed' if reproducer.confirmed else 'not confirmed'} in a clean process):\n")
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


def _as_json(found: Finding) -> dict[str, object]:
    return {
        "finding": found.public_id,
        "signature": found.signature,
        "verdict": found.verdict,
        "hits": found.hits,
        "culprit": found.culprit,
        "torch": found.torch_versions,
        "first_seen": found.first_seen.isoformat(),
    }
