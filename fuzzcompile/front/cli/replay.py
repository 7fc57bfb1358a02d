"""``fuzzcompile replay``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import complete_findings, open_corpus, require_trusted
from fuzzcompile.front.cli.finding_output import format_columns
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions, Limits, choose_running_device
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.settings import FiniteRange, read_settings

if TYPE_CHECKING:
    from fuzzcompile.corpus.replay.replay_engine import Result
    from fuzzcompile.corpus.replay.replay_run import Record, ReplayRun


@click.command(cls=FoldedCommand)
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
        from fuzzcompile.corpus.replay.replay_run import ReplayRun
        from fuzzcompile.report.output_files import EventLog
        from fuzzcompile.run.subprocesses import sigterm_interrupts

        if self.bisect and len(self.torches) < 2:
            raise UsageError("--bisect needs two versions to search between: give --torch twice or more.")
        with EventLog(self.log) as events, open_corpus(self.location) as store:
            chosen = subjects(store, self.selection)
            if not chosen:
                raise EnvironmentUnfit("There is no finding to replay: the corpus has none, or none that was selected.")
            require_trusted(store, [subject.finding for subject in chosen], trusted=self.trusted)

            def show_result(result: Result, number: int, total: int) -> None:
                replay, finding = result.replay, result.subject.finding
                what = {"finding": finding.public_id, "signature": finding.signature, "torch": replay.torch}
                how = {"status": replay.status, "runs": list(replay.runs), "seconds": round(replay.seconds, 1)}
                events.write("replayed", {**what, **how})
                click.echo(f"{number}/{total} {_format_result(result)}", err=True)

            settings = Settings(self.runs, self.timeout, self.jobs, self.hide_gpus)
            replays = ReplayRun(store, chosen, settings, show_result, lambda text: click.echo(text, err=True))
            events.write("replay_started", {"findings": len(chosen), "torches": list(self.torches), "runs": self.runs})
            try:
                with sigterm_interrupts():
                    replays.run(self.torches)
                    if self.bisect and self._may_bisect(replays):
                        replays.bisect()
            except KeyboardInterrupt:
                replays.interrupted = True
            status = replays.choose_status(strict=self.strict)
            events.write("replay_finished", {"exit_status": status, "not_had": replays.lacking})
        self._show(replays, store.location)
        return status

    def _may_bisect(self, replays: ReplayRun) -> bool:
        """Say what a bisection takes, and ask unless that was answered."""
        from fuzzcompile.corpus.replay.environments import CPU_GB, DEFAULT_GB, free_bytes, is_made
        from fuzzcompile.corpus.replay.replay_history import order

        try:
            releases = replays.list_open_releases()
        except EnvironmentUnfit as error:
            click.echo(f"Not bisected: {error}", err=True)
            replays.lacking.append("--bisect")
            return False
        if not releases:
            click.echo("Nothing to bisect: no release lies between versions on which a finding changes.", err=True)
            return False
        missing = sum(not is_made(order(release)) for release in releases)
        click.echo(
            f"To bisect: up to {len(releases)} releases ({releases[0]} to {releases[-1]}), for which up to {missing} "
            f"environments of {CPU_GB} to {DEFAULT_GB} GB each are made; {free_bytes() / 10**9:.0f} GB are free.",
            err=True,
        )
        if not self.yes and not sys.stdin.isatty():
            click.echo("Not bisected: there is nobody to ask; add --yes.", err=True)
            return False
        try:
            return self.yes or click.confirm("Go on?", err=True)
        except click.Abort:  # Ctrl-C there is a no: what was found out is still shown
            return False

    def _show(self, replays: ReplayRun, location: str) -> None:
        from fuzzcompile.report.ci_formats import format_replay_junit
        from fuzzcompile.report.output_files import write_whole

        if self.junit is not None:
            write_whole(self.junit, format_replay_junit(replays.records), "--junit")
        if self.markdown is not None:
            page = _format_markdown(replays, hints.format_typed_line(), datetime.now(UTC).date())
            write_whole(self.markdown, page.encode(), "--markdown")
        if self.as_json:
            for record in replays.records:
                click.echo(json.dumps(record.to_json(replays.versions)))
        else:
            _print_replays(replays, location)

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


# What a replay found out, as text and as Markdown.


def _format_result(result: Result) -> str:
    """Return ``F3 on 2.15.0: fixed (3 runs, 12 s): compiled is as exact as eager``."""
    replay = result.replay
    agree = count_noun(len(replay.runs), "run")
    if replay.status == "flaky":
        agree = ", ".join(f"{count} {status}" for status, count in Counter(replay.runs).items())
    finding, torch = result.subject.finding.public_id, replay.torch.partition("+")[0]
    return f"{finding} on {torch}: {replay.status} ({agree}, {replay.seconds:.0f} s): {result.why}"


def _print_replays(replays: ReplayRun, corpus: str) -> None:
    several = len(replays.versions) > 1
    ends = ("since", "fixed in") if several else ()
    rows = [("finding", "severity", *replays.versions, *ends, "what")]
    notes = []
    for record in replays.records:
        statuses = _format_statuses(record, replays.versions, "REGRESSION")
        ends = (_format_since(record), record.history.fixed_in or "-") if several else ()
        rows.append((record.name, str(record.subject.severity or "-"), *statuses, *ends, record.subject.what))
        if several or record.subject.not_replayable:
            notes += [f"{record.name}: {note}." for note in record.notes]
    torches = ", ".join(version for version, _ in replays.builds.values()) or "no torch"
    counts = ", ".join(f"{count} {status}" for status, count in replays.counts.items()) or "nothing was run"
    interrupted = "Interrupted; what is shown is stored. " if replays.interrupted else ""
    back = sum(bool(record.regressions) for record in replays.records)
    counted = f"{count_noun(len(replays.records), 'finding')} on torch {torches}: {counts}; regressions: {back}."
    advice = list(_advise(replays, corpus)) or ["nothing: what was known still fails"]
    nexts = (f"next: {each}" for each in advice)
    click.echo("\n".join((*format_columns(rows), f"{interrupted}{counted}", *notes, *nexts)))


def _format_statuses(record: Record, versions: list[str], regression: str) -> Iterator[str]:
    for version in versions:
        yield f"{record.status(version) or '-'}{f', {regression}' if version in record.regressions else ''}"


def _format_since(record: Record) -> str:
    known = record.history
    if known.affected_since is None:
        return "-"
    return f"{known.affected_since} or earlier" if known.earlier_not_tried else known.affected_since


def _advise(replays: ReplayRun, corpus: str) -> Iterator[str]:
    """Yield a line for each kind of result that asks for something, with the findings it is about."""
    from fuzzcompile.corpus.replay.replay_history import order, public

    def format_command(*words: str, **given: Any) -> str:
        return f"`{hints.format_command(*words, **given, corpus=corpus)}`"

    def list_names(records: Iterable[Record]) -> str:
        return ", ".join(record.name for record in records)

    newest = replays.versions[-1] if replays.versions else ""
    if back := [record for record in replays.records if record.regressions]:
        yield f"{list_names(back)}: was fixed and is back; {format_command('corpus', 'show', back[0].name)}"
    unmarked = [
        record
        for record in replays.records
        # Passing is no news on a version older than those on which it was seen, which may not be affected.
        if record.status(newest) == "fixed"
        and not record.regressions
        and record.subject.finding.status in ("open", "known")
        and all(order(public(torch)) <= order(newest) for torch in record.subject.finding.torch_versions)
    ]
    if unmarked:
        marking = format_command("corpus", "mark", unmarked[0].name, "fixed")
        yield f"{list_names(unmarked)}: fixed on {newest}; {marking} once you are sure"
    unreached = [record for record in replays.records if not record.results and not record.subject.not_replayable]
    if unreached and replays.builds:
        yield f"not reached: {format_command('replay', select=tuple(record.name for record in unreached))}"
    if bare := [record for record in replays.records if record.subject.reproducer is None]:
        yield f"{list_names(bare)}: no reproducer yet; {format_command('minimize', bare[0].name)}"
    for status in ("fails differently", "flaky", "errored", "not run"):
        concerned = [record for record in replays.records if status in map(record.status, replays.versions)]
        if concerned:
            name = concerned[0].name
            exported = f"{format_command('corpus', 'export', name, name)} and run {name}/repro.py there"
            advice = {
                "fails differently": f"{exported}: it may be another bug",
                "flaky": f"{format_command('replay', select=name, runs=10)} shows how often",
                "errored": f"{exported} to see the whole error",
                "not run": "run it where that device is",
            }[status]
            yield f"{list_names(concerned)}: {status}; {advice}"


def _format_markdown(replays: ReplayRun, command: str, today: date) -> str:
    """Return the page: how it was made, with which command, the table with the worst first, and what gave no answer."""
    versions, notes = replays.versions, []
    builds = (replays.builds[version] for version in versions)
    headings = ["finding", "what", "severity", *versions, "since", "fixed in"]
    rows: list[list[str]] = [headings, ["---"] * len(headings)]
    for record in replays.records:
        subject = record.subject
        named = [f"{record.name} `{subject.finding.signature}`", subject.what]
        named.append(str(subject.severity or "-").replace("_", " "))
        statuses = _format_statuses(record, versions, "**regression**")
        rows.append([*named, *statuses, _format_since(record), record.history.fixed_in or "-"])
        notes += [f"- {record.name}: {note}." for note in record.notes]
        for version, result in record.results.items():
            if result.replay.status not in ("failing", "fixed"):
                notes.append(f"- {record.name} on {version}, {result.replay.status}: {result.why}")
    cells = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows)
    lines = [
        *(
            "# Findings across versions of torch",
            "",
            f"Made on {today.isoformat()} by",
            "",
            f"    {command}",
            "",
            "on",
            "",
        ),
        *(f"- torch {build}{f' ({git[:12]})' if git else ''}" for build, git in builds),
        "",
        *(f"| {row} |" for row in cells),
        "",
        '"Since" is the oldest version tried on which it fails, "fixed in" the first later one on which it passes.',
        *(("", *notes) if notes else ()),
    ]
    return "\n".join(lines) + "\n"
