"""``fuzzcompile coverage``."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.finding_output import format_columns
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model.conditions import choose_running_device
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.stages import STAGES

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from fuzzcompile.analyses.coverage import AttentionCoverage, CodeCoverage, CoverageTable, ListedRule, StageCoverage

_COVERAGE_COLUMNS = (
    "stage", "kind", "known", "fired", "refused only", "called only", "unreachable", "off", "never", "reached",
)  # fmt: skip
# There are hundreds of these: their names are shown only with --stage.
_MANY_NAMES = ("decomposition", "lowering", "kernel")


@click.command(cls=FoldedCommand)
@click.option("--stage", metavar="STAGE", help="Only this stage, with all its names.")
@click.option(
    "--attention",
    is_flag=True,
    help="Also find out which SDPA patterns can fire here, by compiling each one's own search function (a minute).",
)
@click.option(
    "--within", metavar="TIME", help="Count only what campaigns had judged in their first TIME together: 90s, 30m, 1h."
)
@click.option(
    "--code",
    metavar="TIME",
    help="Also judge cases of these campaigns anew for TIME, in random order, with a probe in each statement and "
    "branch of the compiler's Python, and count what they reach.",
)
@click.option(
    "--rules",
    is_flag=True,
    help="List the stages, passes, patterns and settings of the installed torch instead, one a row: whether it runs "
    "under the present settings and on what condition, where its source is, and how often it fired or was refused.",
)
@click.option("--never", is_flag=True, help="With --rules: only passes and patterns that were never seen to fire.")
@options.output_file("--report", parents=True, help="Also write the whole table, with reasons, to FILE as Markdown.")
@options.device
@options.target
@options.corpus
@options.json_output
def coverage(rules: bool, never: bool, **given: Any) -> int:
    """Show what campaigns have reached of the installed torch: rewrites, decompositions, lowerings, kernels.

    For each stage, the table counts the rules that torch registers; those that fired; those that matched but were
    refused by their own check; those that this device or the default configuration cannot reach (--stage shows why);
    those that are off under the present settings; and those that never matched, which are then listed by name.
    Operators that are only called where others are lowered are counted apart. "reached" is the share of what can be
    reached; the last lines give both that share and the share of everything registered. What cannot be reached was
    checked on some versions of torch only: on others, the share of everything registered stands alone. With --target,
    the rules are those registered for that device, and only campaigns for it count.
    """
    if rules:
        named = {name: given[name] for name in ("stage", "device", "target", "location", "as_json")}
        return _list_rules(**named, never=never)
    return _show_coverage(**given)


def _show_coverage(
    stage: str | None,
    attention: bool,
    within: str | None,
    code: str | None,
    report: Path | None,
    device: str,
    target: str | None,
    location: str | None,
    as_json: bool,
) -> int:
    from fuzzcompile.fuzz.campaign.budget import parse_seconds

    seconds = None if within is None else parse_seconds(within, "--within")
    probing = None if code is None else parse_seconds(code, "--code")
    if stage is not None and stage not in (*STAGES, "kernel"):
        raise UsageError(f"There is no stage {stage!r}; there are {', '.join(STAGES)}.")

    from fuzzcompile.analyses.coverage import measure_coverage
    from fuzzcompile.run.device import resolve_device

    resolved = resolve_device(choose_running_device(device, target))
    table = measure_coverage(resolved, location, seconds, target=target)
    shown = [row for row in table.stages if stage in (None, row.stage)]
    if not shown:
        stages = ", ".join(dict.fromkeys(row.stage for row in table.stages))
        raise UsageError(f"There is no stage {stage!r} with coverage; there are {stages}.")
    patterns, missing = _measure_attention(resolved, table) if attention else (None, None)
    reached = None if probing is None else _measure_code(table, location, probing, seconds, device)
    if report is not None:
        _write_report(report, table, patterns, missing, reached)
    if as_json:
        content = _make_json(table, shown)
        if attention:
            content["attention"] = patterns and vars(patterns)
        if reached is not None:
            content["code"] = reached.to_json()
        click.echo(json.dumps(content))
    else:
        _print_coverage(table, shown, every=stage is not None)
        if patterns is not None:
            _print_attention(patterns)
        if reached is not None:
            _print_code(reached, every=stage is not None)
    if missing is not None:
        click.echo(f"fuzzcompile: {missing}", err=True)
        return 3
    return 0


def _make_json(table: CoverageTable, shown: Sequence[StageCoverage]) -> dict[str, object]:
    named = {key: getattr(table, key) for key in ("torch", "device", "target", "corpus", "note")}
    counted = {"within": table.within, "ran": table.ran, "cases": table.counters.cases, "runs": table.counters.runs}
    return {**named, "counted": counted, "rules": vars(table.rules), "stages": [row.to_json() for row in shown]}


def _measure_attention(device: torch.device, table: CoverageTable) -> tuple[AttentionCoverage | None, str | None]:
    """Return the SDPA patterns, or the sentence that says why they are not known."""
    from rich.console import Console

    from fuzzcompile.analyses.coverage import measure_attention_coverage

    with Console(stderr=True).status("Compiling SDPA patterns ...") as status:

        def show_progress(done: int, total: int) -> None:
            status.update(f"SDPA patterns: {done} of {total} compiled")

        try:
            return measure_attention_coverage(device, table.seen, show_progress, target=table.target), None
        except EnvironmentUnfit as error:
            return None, str(error)


def _measure_code(
    table: CoverageTable, location: str | None, seconds: float, within: float | None, device: str
) -> CodeCoverage:
    """Judge cases of the campaigns that the table counts once more, and count what they reach."""
    from rich.console import Console

    from fuzzcompile.analyses.coverage import measure_code
    from fuzzcompile.corpus.records import identify_compiler, moment_at
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.diagnosis.worker.local_pool import choose_worker_count
    from fuzzcompile.model.conditions import Conditions

    with Store.open(location, create=False) as store:
        until = None if within is None else moment_at(table.campaigns, within)
        compiler = identify_compiler({"torch": table.torch, "target": table.target})
        cases = store.judged_cases(compiler, until=until)
    conditions = Conditions(device if table.target is None else "cpu", target=table.target)
    with Console(stderr=True).status("Putting probes into the compiler ...") as status:
        return measure_code(cases, conditions, seconds, choose_worker_count(conditions.device), status.update)


def _print_code(code: CodeCoverage, *, every: bool) -> None:
    rows = [("stage", "statements and branches", "reached", "share", "most missed in")]
    for row in (*code.stages, code.total):
        missed = row.missed if every else row.missed[:2]
        files = ", ".join(f"{file.removeprefix('torch/')} {number}" for file, number in missed)
        rows.append((row.stage, str(row.known), str(row.reached), _format_percent(row.share), files))
    click.echo("\n" + "\n".join(format_columns(rows) if sys.stdout.isatty() else map("\t".join, rows)))
    lost = f", of which {code.failed} were lost" if code.failed else ""
    click.echo(
        f"\nThe compiler's Python: {_format_percent(code.total.share)} of its statements and branches are reached by "
        f"{code.cases} of {code.judged} cases{lost}."
    )


def _write_report(
    path: Path,
    table: CoverageTable,
    patterns: AttentionCoverage | None,
    missing: str | None,
    reached: CodeCoverage | None,
) -> None:
    """Write the report in Markdown; without ``patterns``, ``missing`` says why if they were asked for."""
    import torch

    from fuzzcompile.analyses.coverage import RULES
    from fuzzcompile.fuzz.campaign.budget import format_duration
    from fuzzcompile.model.package_files import get_template
    from fuzzcompile.model.privacy import scrub
    from fuzzcompile.model.versions import __version__
    from fuzzcompile.report.circumstances import versions
    from fuzzcompile.report.output_files import write_whole
    from fuzzcompile.run.device import describe_environment

    rules = [row for row in table.stages if row.kind in RULES]
    names = defaultdict[tuple[str, str, str], list[str]](list)
    for row in rules:
        for name, reason in row.unreachable.items():
            names[row.stage, row.kind, reason.why].append(name)
    machine = {**describe_environment(torch.device(table.device), table.target), "torch": table.torch}
    text = get_template("reports/coverage.md.j2").render(
        table=table,
        total=table.rules,
        rules=rules,
        groups=Counter(reason.group for row in rules for reason in row.unreachable.values()).most_common(),
        reasons=[(*place, listed) for place, listed in names.items()],
        attention=patterns,
        missing=missing,
        reached=reached,
        version=__version__,
        versions=versions(machine),
        clock=format_duration,
        percent=_format_percent,
        scrub=scrub,
    )
    write_whole(path, text.encode(), "--report")


def _print_coverage(table: CoverageTable, shown: list[StageCoverage], *, every: bool) -> None:
    from fuzzcompile.fuzz.campaign.budget import format_duration

    rows = [_COVERAGE_COLUMNS, *map(_format_coverage_cells, shown)]
    # Tabs are for grep and cut.
    click.echo("\n".join(format_columns(rows) if sys.stdout.isatty() else map("\t".join, rows)))
    for row in shown:
        if not every and row.kind in _MANY_NAMES:
            continue
        lists = {"fired": row.fired, "called only": row.fallback} if every else {}
        lists |= {"refused only": row.refused, "never reached": [*row.off, *row.never]}
        for outcome, names in lists.items():
            if names:
                click.echo(f"\n{row.stage}, {row.kind}, {outcome}: {', '.join(names)}")
        for name, reason in row.unreachable.items() if every else ():
            click.echo(f"\n{row.stage}, {row.kind}, unreachable: {name}: {reason.why}")
    if not every:
        click.echo(f"\n{_format_shares(table)}")
    told = f" for {table.target}" if table.target is not None else ""
    counted = f": {table.counters.cases} cases"
    if table.within is not None:
        counted = f": the {table.counters.cases} cases of the first {format_duration(table.ran)} of campaigns"
    click.echo(f"\ntorch {table.torch}{told}, counted in {table.corpus}{counted}.", err=not sys.stdout.isatty())


def _format_shares(table: CoverageTable) -> str:
    rules = table.rules
    raw = f"{rules.fired} fired of {rules.known} that are registered ({_format_percent(rules.share_of_known)})"
    if rules.unreachable is None:
        return f"Rewrite rules and passes: {raw}. {table.note}"
    reachable = rules.known - rules.unreachable
    return f"Rewrite rules and passes: {raw}, and of {reachable} that can be reached ({_format_percent(rules.share)})."


def _print_attention(patterns: AttentionCoverage) -> None:
    fired = len(patterns.can_fire) - len(patterns.never)
    click.echo(
        f"\nSDPA patterns: {len(patterns.registered)} registered, {len(patterns.can_fire)} can fire here, "
        f"{fired} of these fired ({_format_percent(patterns.share, 0)})."
    )
    if patterns.never:
        click.echo(f"\nSDPA patterns that can fire here and never did: {', '.join(patterns.never)}")
    if patterns.silent:
        click.echo(f"\nSDPA patterns that do not fire for their own search function: {', '.join(patterns.silent)}")
    for name, why in patterns.untried.items():
        click.echo(f"\nThe search function of {name} could not be compiled: {why}")


def _format_coverage_cells(row: StageCoverage) -> list[str]:
    if row.known is None:
        return [row.stage, row.kind, "-", str(len(row.fired)), *["-"] * (len(_COVERAGE_COLUMNS) - 4)]
    counts = (row.fired, row.refused, row.fallback, row.unreachable, row.off, row.never)
    return [row.stage, row.kind, str(row.known), *(str(len(names)) for names in counts), _format_percent(row.share, 0)]


def _format_percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


# ``fuzzcompile coverage --rules``.

# There are hundreds of these: they are listed only with --stage.
_MANY_PASSES = ("decomposition", "lowering")
_SETTING = re.compile(r"\bconfig\.([\w.]*\w)")
_PASS_COLUMNS = ("stage", "kind", "name", "pass", "on", "fired", "refused", "source", "when")


def _list_rules(
    *, stage: str | None, device: str, target: str | None, location: str | None, never: bool, as_json: bool
) -> int:
    if stage is not None and stage not in STAGES:
        raise UsageError(f"--stage {stage}: with --rules it is one of {', '.join(STAGES)}.")

    from fuzzcompile.analyses.coverage import list_rules
    from fuzzcompile.run.device import resolve_device

    rows, corpus = list_rules(resolve_device(choose_running_device(device, target)), location, target=target)
    if corpus is None and never:
        click.echo("fuzzcompile: there is no corpus, so nothing was seen to fire; name one with --corpus.", err=True)
    rows = [row for row in rows if stage in (None, row.known.stage)]
    if never:
        rows = [row for row in rows if row.known.kind in ("pass", "pattern") and not row.fired]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row.to_json()))
        return 0
    _print_listing(rows, corpus, every=stage is not None)
    return 0


def _print_listing(rows: list[ListedRule], corpus: str | None, *, every: bool) -> None:
    import torch
    from rich.console import Console

    shown = [row for row in rows if every or row.known.kind not in _MANY_PASSES]
    console = Console()
    if console.is_terminal:
        for stage in dict.fromkeys(row.known.stage for row in shown):
            console.print(_make_stage_table(stage, [row for row in shown if row.known.stage == stage]))
            console.print()
    else:  # for grep and cut
        click.echo("\n".join("\t".join(cells) for cells in (_PASS_COLUMNS, *map(_format_pass_cells, shown))))
    counts = Counter(row.known.kind for row in rows)
    plurals = {"pass": "passes"}
    total = ", ".join(f"{count} {plurals.get(kind, f'{kind}s')}" for kind, count in counts.items()) or "nothing"
    where = f"counted in {corpus}" if corpus else "no corpus to count in"
    click.echo(f"torch {torch.__version__}: {total}; {where}.", err=not console.is_terminal)


def _make_stage_table(stage: str, rows: list[ListedRule]) -> Table:
    """Return one stage for a terminal: patterns below their pass, paths and conditions in short."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(stage, overflow="fold", max_width=50)
    for heading in ("on", "fired", "refused"):
        table.add_column(heading, no_wrap=True)
    table.add_column("source in torch/_inductor", overflow="fold", min_width=36)
    table.add_column("switched on by, or set to", overflow="fold")
    for row in rows:
        _, kind, name, _, on, fired, refused, source, when = _format_pass_cells(row)
        switches = "" if row.known.on else ", ".join(dict.fromkeys(_SETTING.findall(when)))
        settings = when if kind == "setting" else switches or "-"
        indented = f"  {name}" if kind == "pattern" else name
        cells = (indented, on, fired, refused, source.removeprefix("torch/_inductor/"), settings)
        table.add_row(*map(Text, cells))
    return table


def _format_pass_cells(row: ListedRule) -> list[str]:
    known, when = row.known, row.known.when
    if known.kind == "setting" and known.changed:
        when += f" (torch's own: {known.default})"
    counts = ["-" if count is None else str(count) for count in (row.fired, row.refused)]
    source = f"{known.source}:{known.line}" if known.source else "-"
    on = {True: "yes", False: "no", None: "-"}[known.on]
    return [known.stage, known.kind, known.name, known.pass_name or "-", on, *counts, source, when or "-"]
