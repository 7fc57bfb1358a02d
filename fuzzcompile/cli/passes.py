"""``fuzzcompile passes``."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.stage_names import STAGES
from fuzzcompile.worker.conditions import running_device

if TYPE_CHECKING:
    from rich.table import Table

    from fuzzcompile.commands.passes import Listed, Listing

# There are hundreds of these: they are listed only with --stage.
_MANY = ("decomposition", "lowering")
_SETTING = re.compile(r"\bconfig\.([\w.]*\w)")
_COLUMNS = ("stage", "kind", "name", "pass", "on", "fired", "refused", "source", "when")


@click.command()
@click.option("--stage", type=click.Choice(STAGES), help="Only this stage; with all its operators.")
@click.option("--never", is_flag=True, help="Only passes and patterns that the corpus has not seen fire.")
@options.device
@options.target
@options.corpus
@options.json_output
def passes(stage: str | None, never: bool, device: str, target: str | None, location: str | None, as_json: bool) -> int:
    """List the stages, passes, patterns and settings of the installed torch that fuzzcompile knows.

    Each row says whether it runs under the present settings and on what condition, where its source is, and how often
    it fired in the corpus, or matched and was refused by its own check. Operators that Inductor decomposes or lowers
    itself are counted; --stage and --json list them. With --target, the rows are what is registered for that device.
    """
    from fuzzcompile.commands.passes import list_passes
    from fuzzcompile.execution.device import resolve

    listing = list_passes(resolve(running_device(device, target)), location, target=target)
    if listing.corpus is None and never:
        click.echo("fuzzcompile: there is no corpus, so nothing was seen to fire; name one with --corpus.", err=True)
    rows = [row for row in listing.rows if stage in (None, row.known.stage)]
    if never:
        rows = [row for row in rows if row.known.kind in ("pass", "pattern") and not row.fired]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row.to_json()))
        return 0
    _print(rows, listing, every=stage is not None)
    return 0


def _print(rows: list[Listed], listing: Listing, *, every: bool) -> None:
    import torch
    from rich.console import Console

    shown = [row for row in rows if every or row.known.kind not in _MANY]
    console = Console()
    if console.is_terminal:
        for stage in dict.fromkeys(row.known.stage for row in shown):
            console.print(_table(stage, [row for row in shown if row.known.stage == stage]))
            console.print()
    else:  # for grep and cut
        click.echo("\t".join(_COLUMNS))
        for row in shown:
            click.echo("\t".join(_cells(row)))
    counts = Counter(row.known.kind for row in rows)
    plurals = {"pass": "passes"}
    total = ", ".join(f"{count} {plurals.get(kind, f'{kind}s')}" for kind, count in counts.items()) or "nothing"
    where = f"counted in {listing.corpus}" if listing.corpus else "no corpus to count in"
    click.echo(f"torch {torch.__version__}: {total}; {where}.", err=not console.is_terminal)


def _table(stage: str, rows: list[Listed]) -> Table:
    """One stage for a terminal: patterns below their pass, paths and conditions in short."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(stage, overflow="fold", max_width=50)
    for heading in ("on", "fired", "refused"):
        table.add_column(heading, no_wrap=True)
    table.add_column("source in torch/_inductor", overflow="fold", min_width=36)
    table.add_column("switched on by, or set to", overflow="fold")
    for row in rows:
        _, kind, name, _, on, fired, refused, source, when = _cells(row)
        switches = "" if row.known.on else ", ".join(dict.fromkeys(_SETTING.findall(when)))
        settings = when if kind == "setting" else switches or "-"
        indented = f"  {name}" if kind == "pattern" else name
        cells = (indented, on, fired, refused, source.removeprefix("torch/_inductor/"), settings)
        table.add_row(*map(Text, cells))
    return table


def _cells(row: Listed) -> list[str]:
    known = row.known
    when = known.when
    if known.kind == "setting" and known.changed:
        when += f" (torch's own: {known.default})"
    return [
        known.stage,
        known.kind,
        known.name,
        known.pass_name or "-",
        {True: "yes", False: "no", None: "-"}[known.on],
        "-" if row.fired is None else str(row.fired),
        "-" if row.refused is None else str(row.refused),
        f"{known.source}:{known.line}" if known.source else "-",
        when or "-",
    ]
