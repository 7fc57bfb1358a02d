"""``fuzzcompile coverage``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.worker.conditions import running_device

if TYPE_CHECKING:
    import torch

    from fuzzcompile.commands.attention import AttentionCoverage
    from fuzzcompile.commands.coverage import CoverageTable, StageCoverage

_COLUMNS = ("stage", "kind", "known", "fired", "refused only", "called only", "unreachable", "off", "never", "reached")
# There are hundreds of these: their names are shown only with --stage.
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
    help="Also write the whole table, with reasons, to FILE as Markdown.",
)
@options.device
@options.target
@options.corpus
@options.json_output
def coverage(
    stage: str | None,
    attention: bool,
    within: str | None,
    report: Path | None,
    device: str,
    target: str | None,
    location: str | None,
    as_json: bool,
) -> int:
    """Show what campaigns have reached of the installed torch: rewrites, decompositions, lowerings, kernels.

    For each stage, the table counts the rules that torch registers; those that fired; those that matched but were
    refused by their own check; those that this device or the default configuration cannot reach (--stage shows why);
    those that are off under the present settings; and those that never matched, which are then listed by name.
    Operators that are only called where others are lowered are counted apart. "reached" is the share of what can be
    reached; the last lines give both that share and the share of everything registered. What cannot be reached was
    checked on some versions of torch only: on others, the share of everything registered stands alone. With --target,
    the rules are those registered for that device, and only campaigns for it count.
    """
    from fuzzcompile.campaign.budget import seconds_of
    from fuzzcompile.errors import UsageError
    from fuzzcompile.stage_names import STAGES

    seconds = None if within is None else seconds_of(within, "--within")
    if stage is not None and stage not in (*STAGES, "kernel"):
        raise UsageError(f"There is no stage {stage!r}; there are {', '.join(STAGES)}.")

    from fuzzcompile.commands.coverage import coverage_of
    from fuzzcompile.execution.device import resolve

    resolved = resolve(running_device(device, target))
    table = coverage_of(resolved, location, seconds, target=target)
    shown = [row for row in table.stages if stage in (None, row.stage)]
    if not shown:
        stages = ", ".join(dict.fromkeys(row.stage for row in table.stages))
        raise UsageError(f"There is no stage {stage!r} with coverage; there are {stages}.")
    patterns, missing = _attention(resolved, table) if attention else (None, None)
    if report is not None:
        _write(report, table, patterns, missing)
    if as_json:
        counters = table.counters
        counted = {"within": table.within, "ran": table.ran, "cases": counters.cases, "runs": counters.runs}
        content: dict[str, object] = {
            "torch": table.torch,
            "device": table.device,
            "target": target,
            "corpus": table.corpus,
        }
        content |= {"note": table.note, "counted": counted, "rules": table.rules.to_json()}
        content["stages"] = [row.to_json() for row in shown]
        if attention:
            content["attention"] = None if patterns is None else patterns.to_json()
        click.echo(json.dumps(content))
    else:
        _print(table, shown, every=stage is not None)
        if patterns is not None:
            _print_attention(patterns)
    if missing is not None:
        click.echo(f"fuzzcompile: {missing}", err=True)
        return 3
    return 0


def _attention(device: torch.device, table: CoverageTable) -> tuple[AttentionCoverage | None, str | None]:
    """The SDPA patterns, or the sentence that says why they are not known."""
    from fuzzcompile.commands.attention import attention_coverage
    from fuzzcompile.errors import EnvironmentUnfit

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            text = f"  SDPA patterns: {done} of {total} compiled" if done < total else ""
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    try:
        return attention_coverage(device, table.seen, progress, target=table.target), None
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


def _print(table: CoverageTable, shown: list[StageCoverage], *, every: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.is_terminal:
        grid = Table(*_COLUMNS, box=None, pad_edge=False)
        for row in shown:
            grid.add_row(*_cells(row))
        console.print(grid)
    else:  # for grep and cut
        click.echo("\n".join("\t".join(cells) for cells in (_COLUMNS, *map(_cells, shown))))
    for row in shown:
        if every or row.kind not in _MANY:
            _print_names(row, every=every)
    if not every:
        click.echo(f"\n{_shares(table)}")
    told = f" for {table.target}" if table.target is not None else ""
    click.echo(f"\ntorch {table.torch}{told}, counted in {table.corpus}{_window(table)}.", err=not console.is_terminal)


def _print_names(row: StageCoverage, *, every: bool) -> None:
    lists = {"fired": row.fired, "called only": row.fallback} if every else {}
    lists |= {"refused only": row.refused, "never reached": [*row.off, *row.never]}
    for outcome, names in lists.items():
        if names:
            click.echo(f"\n{row.stage}, {row.kind}, {outcome}: {', '.join(names)}")
    for name, reason in row.unreachable.items() if every else ():
        click.echo(f"\n{row.stage}, {row.kind}, unreachable: {name}: {reason.why}")


def _shares(table: CoverageTable) -> str:
    from fuzzcompile.commands.coverage_report import percent

    rules = table.rules
    raw = f"{rules.fired} fired of {rules.known} that are registered ({percent(rules.share_of_known)})"
    if rules.unreachable is None:
        return f"Rewrite rules and passes: {raw}. {table.note}"
    reachable = rules.known - rules.unreachable
    return f"Rewrite rules and passes: {raw}, and of {reachable} that can be reached ({percent(rules.share)})."


def _print_attention(patterns: AttentionCoverage) -> None:
    from fuzzcompile.commands.coverage_report import percent

    fired = len(patterns.can_fire) - len(patterns.never)
    click.echo(
        f"\nSDPA patterns: {len(patterns.registered)} registered, {len(patterns.can_fire)} can fire here, "
        f"{fired} of these fired ({percent(patterns.share, 0)})."
    )
    if patterns.never:
        click.echo(f"\nSDPA patterns that can fire here and never did: {', '.join(patterns.never)}")
    if patterns.silent:
        click.echo(f"\nSDPA patterns that do not fire for their own search function: {', '.join(patterns.silent)}")
    for name, why in patterns.untried.items():
        click.echo(f"\nThe search function of {name} could not be compiled: {why}")


def _window(table: CoverageTable) -> str:
    from fuzzcompile.campaign.budget import clock

    cases = f"{table.counters.cases} cases"
    return f": {cases}" if table.within is None else f": the {cases} of the first {clock(table.ran)} of campaigns"


def _cells(row: StageCoverage) -> list[str]:
    from fuzzcompile.commands.coverage_report import percent

    if row.known is None:
        return [row.stage, row.kind, "-", str(len(row.fired)), *["-"] * (len(_COLUMNS) - 4)]
    counts = (row.fired, row.refused, row.fallback, row.unreachable, row.off, row.never)
    return [row.stage, row.kind, str(row.known), *(str(len(names)) for names in counts), percent(row.share, 0)]
