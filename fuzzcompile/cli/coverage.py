"""``fuzzcompile coverage``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options

if TYPE_CHECKING:
    import torch

    from fuzzcompile.commands.attention import AttentionCoverage
    from fuzzcompile.commands.coverage import CoverageTable, Stretch

_COLUMNS = ("stage", "kind", "known", "fired", "refused only", "called only", "unreachable", "off", "never", "reached")
# Of these there are hundreds: their names are shown where their stage is asked for.
_MANY = ("decomposition", "lowering", "kernel")


@click.command()
@click.option("--stage", default=None, metavar="STAGE", help="Only this stage, with all its names.")
@click.option(
    "--attention",
    is_flag=True,
    help="Also find out which SDPA patterns can fire here, by compiling each one's own search function (a minute).",
)
@click.option(
    "--within",
    default=None,
    metavar="TIME",
    help="Count only what campaigns had judged in their first TIME together: 90s, 30m, 1h.",
)
@click.option(
    "--report",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write all of it as Markdown to FILE.",
)
@options.device
@options.corpus
@options.json_output
def coverage(
    stage: str | None,
    attention: bool,
    within: str | None,
    report: Path | None,
    device: str,
    location: str | None,
    as_json: bool,
) -> int:
    """Show what campaigns have reached of the installed torch: rewrites, decompositions, lowerings, kernels.

    For each stage: how many rules torch registers, how many fired, only matched and were refused by their own check,
    cannot be reached on this device or in the default configuration (--stage shows the reasons), are off under the
    present settings, or never matched; then these last by name. Operators that are called where others are lowered
    stand apart. "reached" is the share of what has no reason against it.
    """
    from fuzzcompile.commands.coverage import coverage_of
    from fuzzcompile.errors import UsageError
    from fuzzcompile.execution.device import resolve

    resolved = resolve(device)
    table = coverage_of(resolved, location, None if within is None else _seconds(within))
    shown = [one for one in table.stretches if stage in (None, one.stage)]
    if not shown:
        stages = ", ".join(dict.fromkeys(one.stage for one in table.stretches))
        raise UsageError(f"There is no stage {stage!r} with coverage; there are {stages}.")
    patterns, missing = _attention(resolved, table) if attention else (None, None)
    if report is not None:
        _write(report, table, patterns, missing)
    if as_json:
        told: dict[str, object] = {"torch": table.torch, "device": table.device, "corpus": table.corpus}
        told |= {"counted": table.window.to_json(), "rules": table.rules.to_json()}
        told["stages"] = [one.to_json() for one in shown]
        if attention:
            told["attention"] = None if patterns is None else patterns.to_json()
        click.echo(json.dumps(told))
    else:
        _print(table, shown, every=stage is not None)
        if patterns is not None:
            _print_attention(patterns)
    if missing is not None:
        click.echo(f"fuzzcompile: {missing}", err=True)
        return 3
    return 0


def _seconds(within: str) -> float:
    from fuzzcompile.campaign.budget import Budget
    from fuzzcompile.errors import UsageError

    seconds = Budget.parse(within).seconds
    if seconds is None:
        raise UsageError(f"--within takes a time such as 90s, 30m or 1h, not {within!r}.")
    return seconds


def _attention(device: torch.device, table: CoverageTable) -> tuple[AttentionCoverage | None, str | None]:
    """The SDPA patterns, or the sentence that says why they cannot be told."""
    from fuzzcompile.commands.attention import attention_coverage
    from fuzzcompile.errors import EnvironmentUnfit

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            text = f"  SDPA patterns: {done} of {total} compiled" if done < total else ""
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    try:
        return attention_coverage(device, table.seen, progress), None
    except EnvironmentUnfit as error:
        return None, str(error)


def _write(path: Path, table: CoverageTable, patterns: AttentionCoverage | None, missing: str | None) -> None:
    from fuzzcompile.commands.coverage_report import report_of
    from fuzzcompile.errors import UsageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report_of(table, patterns, missing), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The report cannot be written to {path} ({error.strerror}); name another file.") from error


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
        lists = {"refused only": one.refused, "never reached": (*one.off, *one.never)}
        if every:
            lists = {"fired": one.fired, "called only": one.fallback, **lists}
        for what, names in lists.items():
            if names:
                click.echo(f"\n{one.stage}, {one.kind}, {what}: {', '.join(names)}")
        if every:
            for name, reason in one.unreachable.items():
                click.echo(f"\n{one.stage}, {one.kind}, unreachable: {name}: {reason.why}")
    if not every:
        rules = table.rules
        click.echo(
            f"\nRewrite rules and passes: {rules.fired} fired of {rules.known - rules.unreachable} that can be reached "
            f"({_percent(rules.share)}); {rules.unreachable} more are known and have a written reason why they cannot."
        )
    click.echo(f"\ntorch {table.torch}, counted in {table.corpus}{_window(table)}.", err=not console.is_terminal)


def _print_attention(patterns: AttentionCoverage) -> None:
    click.echo(
        f"\nSDPA patterns: {len(patterns.registered)} registered, {len(patterns.can_fire)} can fire here, "
        f"{len(patterns.reached)} of these fired ({_percent(patterns.share)})."
    )
    if patterns.never:
        click.echo(f"\nSDPA patterns that can fire here and never did: {', '.join(patterns.never)}")
    if patterns.silent:
        click.echo(f"\nSDPA patterns that do not fire for their own search function: {', '.join(patterns.silent)}")
    for name, why in patterns.untried.items():
        click.echo(f"\nThe search function of {name} could not be compiled: {why}")


def _window(table: CoverageTable) -> str:
    from fuzzcompile.campaign.budget import clock

    window = table.window
    cases = f"{window.counters.cases} cases"
    return f": {cases}" if window.within is None else f": the {cases} of the first {clock(window.ran)} of campaigns"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _cells(one: Stretch) -> tuple[str, ...]:
    numbers = (one.fired, one.refused, one.fallback, one.unreachable, one.off, one.never)
    counts = [str(len(names)) for names in numbers]
    if one.known is None:
        counts = [counts[0], *["-"] * (len(counts) - 1)]
    return (one.stage, one.kind, "-" if one.known is None else str(one.known), *counts, _percent(one.share))
