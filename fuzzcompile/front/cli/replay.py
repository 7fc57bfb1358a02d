"""``fuzzcompile replay``."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import complete_findings, open_corpus, require_trusted
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions, Limits, choose_running_device
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.settings import FiniteRange, read_settings

if TYPE_CHECKING:
    from fuzzcompile.corpus.replay.replay_engine import Result
    from fuzzcompile.corpus.replay.replay_record import Records
    from fuzzcompile.corpus.replay.replay_run import ReplayRun
    from fuzzcompile.report.output_files import EventLog


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
    "--timeout", default=180.0, show_default=True, type=FiniteRange(min=1), help="Seconds for one run of a script."
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Scripts that run at a time.")
@click.option(
    "--confirm",
    is_flag=True,
    help="Instead judge findings that were seen on one machine on this one: those of --select, else all that wait for "
    "it. That a finding shows here, or does not, is stored with the machine.",
)
@options.device
@options.target
@click.option("--hide-gpus", is_flag=True, help="Let the scripts see no GPU.")
@click.option("--strict", is_flag=True, help="Exit with 1 on any failure, not only on a regression.")
@options.output_file("--junit", help="Also write JUnit XML.")
@options.output_file("--markdown", help="Also write a table of versions.")
@options.trust
@options.log
@options.json_output
@options.corpus
def replay(**given: Any) -> int:
    """Run the reproducers of the corpus again, and say which still fail, which are fixed, and which are back.

    Each script runs several times, alone, before its result is believed and stored. Exit status: 1 on a regression (a
    fixed bug that fails again), or with --strict on any failure; else 3 if a --torch could not be had or nothing could
    be run; else 0.

    With --confirm, the best reproducer of a finding, or its case, is judged under the same torch, device and target.
    Campaigns do the same now and then.
    """
    command = _ReplayCommand(**given)
    return command.confirm_here() if command.confirm else command.run()


@dataclass
class _ReplayCommand:
    selection: tuple[str, ...]
    torches: tuple[str, ...]
    bisect: bool
    yes: bool
    runs: int
    timeout: float
    jobs: int
    confirm: bool
    device: str
    target: str | None
    hide_gpus: bool
    strict: bool
    junit: Path | None
    markdown: Path | None
    trusted: bool
    log: Path | None
    as_json: bool
    location: str | None

    def run(self) -> int:
        from fuzzcompile.corpus.replay.replay_engine import Settings, subjects
        from fuzzcompile.corpus.replay.replay_record import Records
        from fuzzcompile.corpus.replay.replay_run import ReplayRun
        from fuzzcompile.report.output_files import EventLog

        if self.bisect and len(self.torches) < 2:
            raise UsageError("--bisect needs two versions to search between: give --torch twice or more.")
        with EventLog(self.log) as events, open_corpus(self.location) as store:
            records = Records.of(store, subjects(store, self.selection))
            if not records.all:
                raise EnvironmentUnfit("There is no finding to replay: the corpus has none, or none that was selected.")
            require_trusted(store, [record.subject.finding for record in records.all], trusted=self.trusted)
            settings = Settings(self.runs, self.timeout, self.jobs, self.hide_gpus)
            say = functools.partial(click.echo, err=True)
            replays = ReplayRun(store, records, settings, functools.partial(_log_result, events), say)
            asked = {"findings": len(records.all), "torches": list(self.torches), "runs": self.runs}
            events.write("replay_started", asked)
            self._run_replays(replays)
            status = self._choose_status(records, replays.lacking)
            events.write("replay_finished", {"exit_status": status, "not_had": replays.lacking})
        self._show(records, store.location)
        return status

    def _run_replays(self, replays: ReplayRun) -> None:
        from fuzzcompile.run.subprocesses import sigterm_interrupts

        try:
            with sigterm_interrupts():
                replays.run(self.torches)
                if self.bisect and self._may_bisect(replays):
                    replays.bisect()
        except KeyboardInterrupt:
            replays.records.interrupted = True

    def _may_bisect(self, replays: ReplayRun) -> bool:
        """Say what a bisection takes, and ask unless that was answered."""
        from fuzzcompile.corpus.replay.replay_run import describe_cost

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
        if not self.yes and not sys.stdin.isatty():
            click.echo("Not bisected: there is nobody to ask; add --yes.", err=True)
            return False
        try:
            return self.yes or click.confirm("Go on?", err=True)
        except click.Abort:  # Ctrl-C there is a no: what was found out is still shown
            return False

    def _choose_status(self, records: Records, lacking: Sequence[str]) -> int:
        if records.interrupted:
            return _INTERRUPTED
        if records.any_regression or (self.strict and records.any_failure):
            return 1
        return EnvironmentUnfit.exit_status if lacking or not records.ran else 0

    def _show(self, records: Records, location: str) -> None:
        from fuzzcompile.corpus.replay.replay_text import print_records, table
        from fuzzcompile.report.ci_formats import format_replay_junit
        from fuzzcompile.report.output_files import write_whole
        from fuzzcompile.report.verdict_text import report_console

        if self.junit is not None:
            write_whole(self.junit, format_replay_junit(records), "--junit")
        if self.markdown is not None:
            page = table(records, hints.format_typed_line(), datetime.now(UTC).date())
            write_whole(self.markdown, page.encode(), "--markdown")
        if self.as_json:
            for record in records.all:
                click.echo(json.dumps(record.to_json(records.versions)))
        else:
            print_records(report_console(), records, location)

    def confirm_here(self) -> int:
        """Judge on this machine the findings that were seen on another one."""
        if self.torches or self.bisect or self.junit or self.markdown:
            raise UsageError("--confirm judges with the torch at hand: leave out --torch, --bisect and the tables.")
        from fuzzcompile.corpus.replay.replay_engine import subjects

        limits = Limits(self.timeout, int(float(str(read_settings().find_value("max-memory"))) * 2**30))
        conditions = Conditions(choose_running_device(self.device, self.target), limits=limits, target=self.target)
        counts: Counter[str] = Counter()
        with open_corpus(self.location) as store:
            named = [subject.finding for subject in subjects(store, self.selection)] if self.selection else []
            require_trusted(store, named, trusted=self.trusted)

            from fuzzcompile.front.stored_findings import confirm  # imports torch

            names = [finding.public_id for finding in named]
            for answer in confirm(
                store, names, conditions, on_start=lambda name: click.echo(f"Judging {name} ...", err=True)
            ):
                counts[answer.result] += 1
                text = f"{answer.finding}: {answer.result}; {answer.note}."
                click.echo(json.dumps(asdict(answer)) if self.as_json else text)
        summed = ", ".join(f"{count} {result}" for result, count in counts.items())
        click.echo(summed or "No finding waits for a machine like this one.", err=True)
        return 3 if counts["not judged"] else 0


def _log_result(events: EventLog, result: Result) -> None:
    replay, finding = result.replay, result.subject.finding
    what = {"finding": finding.public_id, "signature": finding.signature, "torch": replay.torch}
    how = {"status": str(replay.status), "runs": list(replay.runs), "seconds": round(replay.seconds, 1)}
    events.write("replayed", {**what, **how})
