"""``fuzzcompile coverage``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options

if TYPE_CHECKING:
    from fuzzcompile.campaign.coverage import CoverageTable, Stretch

_COLUMNS = ("stage", "kind", "known", "fired", "refused only", "called only", "off", "never", "reached")
# Of these there are hundreds: their names are shown where their stage is asked for.
_MANY = ("decomposition", "lowering", "kernel")


@click.command()
@click.option("--stage", default=None, metavar="STAGE", help="Only this stage, with all its names.")
@options.device
@options.corpus
@options.json_output
def coverage(stage: str | None, device: str, location: str | None, as_json: bool) -> int:
    """Show what campaigns have reached of the installed torch: rewrites, decompositions, lowerings, kernels.

    For each stage: how many rules torch registers, how many fired, only matched and were refused by their own check,
    are off under the present settings, or never matched; then these last by name. Operators that are called where
    others are lowered stand apart. "reached" is the share of what is not off.
    """
    from fuzzcompile.campaign.coverage import coverage_of
    from fuzzcompile.errors import UsageError
    from fuzzcompile.execution.device import resolve

    table = coverage_of(resolve(device), location)
    shown = [one for one in table.stretches if stage in (None, one.stage)]
    if not shown:
        stages = ", ".join(dict.fromkeys(one.stage for one in table.stretches))
        raise UsageError(f"There is no stage {stage!r} with coverage; there are {stages}.")
    if as_json:
        stretches = [one.to_json() for one in shown]
        click.echo(json.dumps({"torch": table.torch, "corpus": table.corpus, "stages": stretches}))
        return 0
    _print(table, shown, every=stage is not None)
    return 0


def _print(table: CoverageTable, shown: list[Stretch], *, every: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(*_COLUMNS, box=None, pad_edge=False)
    for one in shown:
        grid.add_row(*_cells(one))
    console = Console()
    if console.is_terminal:
        console.print(grid)
    else:  # for grep and cut
        click.echo("\t".join(_COLUMNS))
        for one in shown:
            click.echo("\t".join(_cells(one)))
    for one in shown:
        if not every and one.kind in _MANY:
            continue
        lists = {"refused only": one.refused, "never reached": one.never}
        if every:
            lists = {"fired": one.fired, "called only": one.fallback, **lists, "off": one.off}
        for what, names in lists.items():
            if names:
                click.echo(f"\n{one.stage}, {one.kind}, {what}: {', '.join(names)}")
    click.echo(f"\ntorch {table.torch}, counted in {table.corpus}.", err=not console.is_terminal)


def _cells(one: Stretch) -> tuple[str, ...]:
    numbers = (one.fired, one.refused, one.fallback, one.off, one.never)
    counts = [str(len(names)) for names in numbers]
    if one.known is None:
        counts = [counts[0], "-", "-", "-", "-"]
    share = "-" if one.share is None else f"{100 * one.share:.0f} %"
    return (one.stage, one.kind, "-" if one.known is None else str(one.known), *counts, share)
