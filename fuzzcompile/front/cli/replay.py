"""``fuzzcompile replay``."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import require_trusted
from fuzzcompile.front.cli.completion import complete_findings
from fuzzcompile.model import hints
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.settings import FiniteRange

if TYPE_CHECKING:
    from fuzzcompile.corpus.replay.replay_engine import Result
    from fuzzcompile.corpus.replay.replay_record import Records
    from fuzzcompile.front.commands.replay import ReplayRun


# The exit status that shells give to a program that Ctrl-C ended.
_INTERRUPTED = 130


@click.command()
@click.option(
    "--select",
    "selection",
    multiple=True,
    metavar="NAME|KEY=VALUE",
    shell_complete=complete_findings,
    help="Only these findings: an id, a signature, its beginning or a glob, or severity=, status=, stage= or "
    "umbrella=. Repeatable: names are alternatives, and so are values of one key; each key given must hold.",
)
@click.option(
    "--torch",
    "torches",
    multiple=True,
    metavar="VERSION|nightly|PATH",
    help="Run on this torch instead of the one at hand: a release, for which an environment is made and kept in the "
    "user's cache folder ($FUZZCOMPILE_CACHE), the newest nightly of pip's index ($FUZZCOMPILE_NIGHTLY_INDEX), or an "
    "environment that is there. Repeatable.",
)
@click.option("--bisect", is_flag=True, help="Also try releases in between, until it is known which changed what.")
@click.option("--yes", is_flag=True, help="Do not ask before --bisect makes environments.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(min=1), help="Runs before one is believed.")
@click.option(
    "--timeout",
    default=180.0,
    show_default=True,
    type=FiniteRange(min=1),
    help="Seconds for one run of a script.",
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Scripts that run at a time.")
@click.option("--hide-gpus", is_flag=True, help="Let the scripts see no GPU.")
@click.option("--strict", is_flag=True, help="Exit with 1 on any failure, not only on a regression.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write a table of versions.")
@options.trust
@options.log
@options.json_output
@options.corpus
def replay(
    selection: tuple[str, ...],
    torches: tuple[str, ...],
    bisect: bool,
    yes: bool,
    runs: int,
    timeout: float,
    jobs: int,
    hide_gpus: bool,
    strict: bool,
    junit: Path | None,
    markdown: Path | None,
    trusted: bool,
    log: Path | None,
    as_json: bool,
    location: str | None,
) -> int:
    """Run the reproducers of the corpus again, and say which still fail, which are fixed, and which are back.

    Each script runs several times, alone, before its result is believed and stored. Exit status: 1 on a regression (a
    fixed bug that fails again), or with --strict on any failure; else 3 if a --torch could not be had or nothing could
    be run; else 0.
    """
    from fuzzcompile.corpus.replay.replay_engine import Settings, subjects
    from fuzzcompile.corpus.replay.replay_record import Records
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.front.commands.replay import ReplayRun
    from fuzzcompile.report.output_files import EventLog, check_writable
    from fuzzcompile.run.subprocesses import sigterm_interrupts

    for path, option in ((junit, "--junit"), (markdown, "--markdown")):
        if path is not None:
            check_writable(path, option)
    if bisect and len(torches) < 2:
        raise UsageError("--bisect needs two versions to search between: give --torch twice or more.")

    def log_result(result: Result) -> None:
        events.write("replayed", _make_log_fields(result))

    with EventLog(log) as events, Store.open(location, create=False) as store:
        records = Records.of(store, subjects(store, selection))
        if not records.all:
            raise EnvironmentUnfit("There is no finding to replay: the corpus has none, or none that was selected.")
        require_trusted(store, [record.subject.finding for record in records.all], trusted=trusted)
        settings, say = Settings(runs, timeout, jobs, hide_gpus), functools.partial(click.echo, err=True)
        replays = ReplayRun(store, records, settings, log_result, say)
        events.write("replay_started", {"findings": len(records.all), "torches": list(torches), "runs": runs})
        try:
            with sigterm_interrupts():
                replays.run(torches)
                if bisect and _may_bisect(replays, yes=yes):
                    replays.bisect()
        except KeyboardInterrupt:
            records.interrupted = True
        status = _choose_status(records, replays.lacking, strict=strict)
        events.write("replay_finished", {"exit_status": status, "not_had": replays.lacking})
    _write_tables(records, junit, markdown)
    _print_results(records, store.location, as_json=as_json)
    return status


def _print_results(records: Records, location: str, *, as_json: bool) -> None:
    from fuzzcompile.corpus.replay.replay_text import print_records
    from fuzzcompile.report.verdict_text import report_console

    if as_json:
        for record in records.all:
            click.echo(json.dumps(record.to_json(records.versions)))
    else:
        print_records(report_console(), records, location)


def _make_log_fields(result: Result) -> dict[str, object]:
    """The fields of a replay's event."""
    replay, finding = result.replay, result.subject.finding
    what = {"finding": finding.public_id, "signature": finding.signature, "torch": replay.torch}
    return {**what, "status": str(replay.status), "runs": list(replay.runs), "seconds": round(replay.seconds, 1)}


def _may_bisect(replays: ReplayRun, *, yes: bool) -> bool:
    """Say what a bisection takes, and ask unless that was answered."""
    from fuzzcompile.front.commands.replay import describe_cost

    try:
        releases = replays.list_open_releases()
    except EnvironmentUnfit as error:
        click.echo(f"Not bisected: {error}", err=True)
        replays.lacking.append("--bisect")
        return False
    if not releases:
        click.echo("Nothing to bisect: no release lies between versions on which a finding changes.", err=True)
        return False
    click.echo(f"To bisect: {describe_cost(releases)}.", err=True)
    if not yes and not sys.stdin.isatty():
        click.echo("Not bisected: there is nobody to ask; add --yes.", err=True)
        return False
    try:
        return yes or click.confirm("Go on?", err=True)
    except click.Abort:  # Ctrl-C there is a no: what was found out is still shown
        return False


def _write_tables(records: Records, junit: Path | None, markdown: Path | None) -> None:
    from fuzzcompile.corpus.replay.replay_text import table
    from fuzzcompile.report.ci_formats import format_replay_junit
    from fuzzcompile.report.output_files import write_whole

    if junit is not None:
        write_whole(junit, format_replay_junit(records), "--junit")
    if markdown is not None:
        command = hints.format_typed_line()
        page = table(records, command, datetime.now(UTC).date())
        write_whole(markdown, page.encode(), "--markdown")


def _choose_status(records: Records, lacking: Sequence[str], *, strict: bool) -> int:
    if records.interrupted:
        return _INTERRUPTED
    if records.any_regression or (strict and records.any_failure):
        return 1
    return EnvironmentUnfit.exit_status if lacking or not records.ran else 0
