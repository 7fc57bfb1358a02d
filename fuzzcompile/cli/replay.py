"""``fuzzcompile replay``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile import hints
from fuzzcompile.cli import options
from fuzzcompile.cli.completing import findings
from fuzzcompile.cli.subjects import may_run
from fuzzcompile.errors import EnvironmentUnfit, UsageError

if TYPE_CHECKING:
    from fuzzcompile.commands.replay import Replays
    from fuzzcompile.replaying.engine import Result
    from fuzzcompile.replaying.record import Records

# The exit status that shells give to a program that Ctrl-C ended.
_INTERRUPTED = 130


@click.command()
@click.option(
    "--select",
    "selection",
    multiple=True,
    metavar="NAME|KEY=VALUE",
    shell_complete=findings,
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
    type=options.FiniteRange(min=1),
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
    from fuzzcompile.campaign.interrupts import sigterm_interrupts
    from fuzzcompile.commands.replay import Replays
    from fuzzcompile.corpus import Store
    from fuzzcompile.replaying.engine import Settings
    from fuzzcompile.replaying.record import Records
    from fuzzcompile.replaying.subjects import subjects
    from fuzzcompile.replaying.text import print_records
    from fuzzcompile.reporting.event_log import EventLog
    from fuzzcompile.reporting.files import check_writable
    from fuzzcompile.reporting.verdict import report_console

    for path, option in ((junit, "--junit"), (markdown, "--markdown")):
        if path is not None:
            check_writable(path, option)
    if bisect and len(torches) < 2:
        raise UsageError("--bisect needs two versions to search between: give --torch twice or more.")

    def say(text: str) -> None:
        click.echo(text, err=True)

    def replayed(result: Result) -> None:
        events.write("replayed", _logged(result))

    with EventLog(log) as events, Store.open(location, create=False) as store:
        records = Records.of(store, subjects(store, selection))
        if not records.all:
            raise EnvironmentUnfit("There is no finding to replay: the corpus has none, or none that was selected.")
        may_run(store, [record.subject.finding for record in records.all], trusted=trusted)
        replays = Replays(store, records, Settings(runs, timeout, jobs, hide_gpus), replayed, say)
        events.write("replay_started", {"findings": len(records.all), "torches": list(torches), "runs": runs})
        try:
            with sigterm_interrupts():
                replays.run(torches)
                if bisect and _may_bisect(replays, yes=yes):
                    replays.bisect()
        except KeyboardInterrupt:
            records.interrupted = True
        status = _status(records, replays.lacking, strict=strict)
        events.write("replay_finished", {"exit_status": status, "not_had": replays.lacking})
    _write(records, junit, markdown)
    if as_json:
        for record in records.all:
            click.echo(json.dumps(record.to_json(records.versions)))
    else:
        print_records(report_console(), records, store.location)
    return status


def _logged(result: Result) -> dict[str, object]:
    """The fields of a replay's event."""
    replay, finding = result.replay, result.subject.finding
    what = {"finding": finding.public_id, "signature": finding.signature, "torch": replay.torch}
    return {**what, "status": str(replay.status), "runs": list(replay.runs), "seconds": round(replay.seconds, 1)}


def _may_bisect(replays: Replays, *, yes: bool) -> bool:
    """Say what a bisection takes, and ask unless that was answered."""
    from fuzzcompile.commands.replay import cost_of

    try:
        releases = replays.to_bisect()
    except EnvironmentUnfit as error:
        click.echo(f"Not bisected: {error}", err=True)
        replays.lacking.append("--bisect")
        return False
    if not releases:
        click.echo("Nothing to bisect: no release lies between versions on which a finding changes.", err=True)
        return False
    click.echo(f"To bisect: {cost_of(releases)}.", err=True)
    if not yes and not sys.stdin.isatty():
        click.echo("Not bisected: there is nobody to ask; add --yes.", err=True)
        return False
    try:
        return yes or click.confirm("Go on?", err=True)
    except click.Abort:  # Ctrl-C there is a no: what was found out is still shown
        return False


def _write(records: Records, junit: Path | None, markdown: Path | None) -> None:
    from fuzzcompile.replaying.markdown import table
    from fuzzcompile.reporting.files import write_whole
    from fuzzcompile.reporting.replay_junit import junit_xml

    if junit is not None:
        write_whole(junit, junit_xml(records), "--junit")
    if markdown is not None:
        command = hints.typed()
        page = table(records, command, datetime.now(UTC).date())
        write_whole(markdown, page.encode(), "--markdown")


def _status(records: Records, lacking: Sequence[str], *, strict: bool) -> int:
    if records.interrupted:
        return _INTERRUPTED
    if records.any_regression or (strict and records.any_failure):
        return 1
    return EnvironmentUnfit.exit_status if lacking or not records.ran else 0
