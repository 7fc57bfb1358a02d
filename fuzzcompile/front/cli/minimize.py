"""``fuzzcompile minimize``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import (
    find_case,
    open_existing_corpus,
    require_corpus,
    require_finding,
    require_trusted,
)
from fuzzcompile.front.cli.completion import complete_cases_and_findings
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import read_target
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.hints import CommandSubject

if TYPE_CHECKING:
    from fuzzcompile.corpus.records import StoredReproducer
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.front.commands.minimize import MinimizeSubject
    from fuzzcompile.fuzz.campaign.budget import BudgetClock
    from fuzzcompile.programs.shrink.outcome import MinimizeResult
    from fuzzcompile.programs.shrink.search import SearchProgress
    from fuzzcompile.report.output_files import EventLog


# Output of ``fuzzcompile minimize`` while it runs, and at the end.


class ProgressLine:
    """One line on stderr: size at the start and now, compiles spent, the reducer at work.

    A terminal's line is overwritten; elsewhere each improvement gets a line.
    """

    def __init__(self, source: str) -> None:
        self._start = time.monotonic()
        self._lines = sum(1 for line in source.splitlines() if line.strip())
        self._operators: int | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if sys.stderr.isatty():
            click.echo("\r\033[K", nl=False, err=True)

    def show(self, progress: SearchProgress) -> None:
        """Show the state of a search."""
        if self._operators is None:
            self._operators = progress.operators
        size = f"{self._lines} -> {progress.lines} lines"
        if progress.operators is not None and self._operators is not None:
            size += f", {self._operators} -> {progress.operators} operators"
        used = f"{progress.compiles} compiles, {progress.screens} screens"
        text = f"  {time.monotonic() - self._start:4.0f} s  {size}  {used}  {progress.reducer}"
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)
        elif progress.improved:
            click.echo(text, err=True)


def describe_conclusion(
    small: MinimizeResult, out: Path, named: CommandSubject, others: Path | None = None
) -> Iterator[str]:
    """The result in sentences.

    Args:
        small: the result.
        out: where the reproducer was written.
        named: what the user asked to minimize, and with which options.
        others: where secondary candidates are written, if anywhere.
    """
    if small.note:
        yield f"Note: {small.note}."
    if small.interrupted:
        what = "the best so far, not confirmed in a clean process" if small.changed else "the case as it is"
        yield f"Interrupted after {small.tests} compiles and screens: {out} is {what} ({small.lines_after} lines)."
        yield f"To continue: {named.format_command('minimize', resume=True)}"
        return
    if not small.changed:
        what = "nothing smaller was found" if small.finished else "nothing smaller was found within the budget"
        yield f"{out}: {what}; the case is kept as it is ({small.tests} tests in {small.seconds:.0f} s)."
        return
    operators = ""
    if small.operators is not None and small.operators_before is not None:
        operators = f", {small.operators} operators ({small.operators_before} before)"
    yield (
        f"{out}: {small.lines_after} lines with its check ({small.lines_before} before){operators}, "
        f"{small.tests} compiles and screens in {small.seconds:.0f} s."
    )
    if small.other_sources:
        where = f"they are in {others}" if others is not None else "--others DIR writes them"
        yield f"{len(small.other_sources)} candidates failed in another way; {where}."
    if not small.finished:
        yield f"The budget ended the search; `{named.format_command('minimize', resume=True)}` continues it."


def describe_confirmation(small: MinimizeResult, out: Path, named: CommandSubject) -> str:
    """Return the sentences that the reproducer shows the bug, and what to do next."""
    target = read_target(small.report)
    if target is None:
        return f"Confirmed in a clean process. Next: {hints.format_script(out)}; {named.format_command('issue')}"
    draft = named.with_options(target=target).format_command("issue")
    return f"Confirmed in a clean process for {target}, on no GPU. Next: python {out} on a machine with one; {draft}"


# ``fuzzcompile minimize --pending``: a campaign that judges no cases of its own.


def minimize_pending(
    budget: str, conditions: Conditions, location: str | None, log: Path | None, *, trusted: bool
) -> int:
    """Minimize the findings of the corpus that have no reproducer, and summarise what became of them.

    Those of another corpus are left out until they are ``trusted``.

    Raises:
        UntrustedError: all that wait come from another corpus.
        UsageError: ``budget`` is no time.
        CorpusError: there is no such corpus.
        EnvironmentUnfit: the machine can compile no more.
    """
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget, parse_seconds

    clock = BudgetClock(CampaignBudget(seconds=parse_seconds(budget, "minimize --budget")))
    with Store.open(location, create=False) as store:  # before a worker is started: there may be none
        waiting = [finding for finding in store.summaries("open") if finding.reproducer_lines is None]
        if trusted or not any(finding.trusted for finding in waiting):
            require_trusted(store, waiting, trusted=trusted)
    from rich.console import Console

    from fuzzcompile.diagnosis.worker.local_pool import choose_worker_count
    from fuzzcompile.fuzz.campaign.campaign_display import format_starting, make_progress_handler, print_summary
    from fuzzcompile.fuzz.campaign.campaign_outputs import CampaignOutputs
    from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, start_workers
    from fuzzcompile.fuzz.generation.profile import Profile

    outputs = CampaignOutputs(log, None, None, location)
    workers = choose_worker_count(conditions.device)
    click.echo(format_starting(workers), err=True)
    with (
        outputs,
        start_workers(conditions, workers, clock) as started,
        make_progress_handler(Console(stderr=True)) as handler,
    ):
        summary = run_campaign(
            started.make_settings(Profile(), clock, seed=0, judges=False),
            started,
            location=location,
            command=hints.format_typed_line(),
            on_event=outputs.before(handler.handle),
            clock=clock,
        )
        outputs.finish(summary)
    print_summary(Console(), summary, conditions.options(), judges=False)
    if summary.why is not None:
        raise EnvironmentUnfit(summary.why)
    return 0


# What judging a candidate that failed in another way may take, the start of a worker included.
_SECONDS_OF_ANOTHER = 15.0
# The exit status that shells give to a program that Ctrl-C ended.
_INTERRUPTED = 130


@click.command()
@click.argument("name", required=False, metavar="[CASE|FINDING]", shell_complete=complete_cases_and_findings)
@options.model("name", str)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; default repro_NAME.py.")
@click.option(
    "--pending",
    is_flag=True,
    help="Minimize the findings of the corpus that have no reproducer yet, the worst first, within --budget.",
)
@click.option(
    "--budget",
    default="5m",
    show_default=True,
    metavar="90s|10m",
    help="Time for everything from the start of the command; a search takes ten seconds at least.",
)
@click.option(
    "--compiles", default=200, show_default=True, type=click.IntRange(min=1), help="Compiles and screens to spend."
)
@click.option(
    "--keep",
    type=click.Choice(["verdict", "culprit"]),
    default="culprit",
    show_default=True,
    help="What must stay the same: the kind of verdict only, or the culprit too.",
)
@click.option(
    "--others",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for candidates that fail in another way (secondary findings).",
)
@click.option("--resume", is_flag=True, help="Continue an earlier search for this case.")
@options.trust
@options.log
@options.conditions
@options.corpus
def minimize(**options: Any) -> int:
    """Minimize a case or a finding, and write a reproducer that needs only torch.

    A generated case from the corpus is first reduced through its recipe. Then, as for any other case or script, the
    graphs that dynamo captures are reduced. The reproducer exits with 1 on the bug and with 0 once it is fixed. Ctrl-C
    keeps the best case so far; OUT.state keeps what was learned until a search is finished, for --resume.

    With --pending, every finding that a campaign had no time to minimize gets its reproducer in the corpus, and its
    issue draft in reports/drafts.
    """
    return _MinimizeCommand(**options).run()


@dataclass
class _MinimizeCommand:
    """The options of ``fuzzcompile minimize``, and the steps of the command."""

    name: str | None
    out: Path | None
    pending: bool
    budget: str
    compiles: int
    keep: Literal["verdict", "culprit"]
    others: Path | None
    resume: bool
    trusted: bool
    log: Path | None
    conditions: Conditions
    location: str | None

    def run(self) -> int:
        """Minimize one case or finding, or with ``--pending`` what waits in the corpus; return the exit status."""
        if self.pending:
            if self.name or self.out or self.others or self.resume:
                raise UsageError(
                    "--pending minimizes what waits in the corpus: leave out the case, --out and --resume."
                )
            return minimize_pending(self.budget, self.conditions, self.location, self.log, trusted=self.trusted)
        assert self.name is not None  # `options.model` has asked for one
        find_case(self.name)
        from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget, parse_seconds
        from fuzzcompile.report.output_files import EventLog, check_writable

        clock = BudgetClock(CampaignBudget(seconds=parse_seconds(self.budget, "minimize --budget")))
        if self.out is not None:
            check_writable(self.out, "--out", parents=True)
        self._check_finding(self.name)
        with EventLog(self.log) as events, open_existing_corpus(self.location) as store:
            subject = _find_subject(self.name, self.out, store, self.conditions, resume=self.resume)
            if subject is None:
                click.echo(
                    f"{self.name} shows no bug: there is nothing to minimize. "
                    f"`{_explain_no_subject(self.name, self.conditions)}` says why."
                )
                return 0
            small, out = self._search(self.name, subject, events, clock)
            self._keep(store, subject, small, out, clock)
        if self.others is not None:
            for number, source in enumerate(small.other_sources, start=1):
                _write(self.others / f"{out.stem}_other_{number}.py", source)
        named = CommandSubject(subject.finding or self.name, {**self.conditions.options(), "corpus": self.location})
        return _choose_status(small, out, named)

    def _check_finding(self, name: str) -> None:
        """Check that a name that is no file is a finding, and that its program may be run."""
        if find_case(name) is None:
            require_finding(name, self.location)
            with open_existing_corpus(self.location) as store:
                finding = require_corpus(store, name).finding(name)
                require_trusted(require_corpus(store, name), [finding], trusted=self.trusted)

    def _search(
        self, name: str, subject: MinimizeSubject, events: EventLog, clock: BudgetClock
    ) -> tuple[MinimizeResult, Path]:
        """Search for the smallest case, and show and log the progress; return it with the file for its reproducer."""
        from fuzzcompile.front.commands.minimize import choose_conditions
        from fuzzcompile.front.commands.minimize import minimize as search

        self.conditions = choose_conditions(subject, self.conditions)
        out = self.out or _choose_out(name, subject.finding)
        click.echo(f"Minimizing: {subject.report['verdict']}, {subject.report['signature']} ...", err=True)
        started = {"name": name, "verdict": subject.report["verdict"], "signature": subject.report["signature"]}
        events.write("minimize_started", started)
        with ProgressLine(subject.source) as line:

            def show_progress(progress: SearchProgress) -> None:
                events.write("candidate_probed", vars(progress))
                line.show(progress)

            small = search(
                subject,
                self.conditions,
                seconds=clock.remaining,
                compiles=self.compiles,
                keep=self.keep,
                state=_locate_state(out),
                resume=self.resume,
                on_progress=show_progress,
            )
        events.write("minimize_finished", _summarise(small, out))
        return small, out

    def _keep(
        self, store: Store | None, subject: MinimizeSubject, small: MinimizeResult, out: Path, clock: BudgetClock
    ) -> None:
        """Store and write the reproducer, say so, and judge the candidates that failed in another way."""
        from fuzzcompile.fuzz.campaign.campaign_outputs import keep_reproducer

        if store is not None and subject.finding is not None and not small.interrupted:
            kept = keep_reproducer(store, subject.finding, small)
            for text in _describe_kept(kept, subject.finding):
                click.echo(text)
        _write(out, small.reproducer)
        typed = {**self.conditions.options(), "corpus": self.location, "out": self.out, "others": self.others}
        for text in describe_conclusion(small, out, CommandSubject(str(self.name), typed), self.others):
            click.echo(text)
        if store is not None and small.other_sources and not small.interrupted:
            _judge_others(store, small, self.conditions, clock.remaining)


def _summarise(small: MinimizeResult, out: Path) -> dict[str, object]:
    """The fields of the last event."""
    lines = {"lines_before": small.lines_before, "lines": small.lines_after, "how": small.how}
    ended = {"confirmed": small.confirmed, "interrupted": small.interrupted, "note": small.note}
    return {"out": str(out), **lines, **ended, "tests": small.tests, "seconds": round(small.seconds, 1)}


def _find_subject(
    name: str,
    out: Path | None,
    store: Store | None,
    conditions: Conditions,
    *,
    resume: bool,
) -> MinimizeSubject | None:
    """Return the case that ``name`` names: a file, judged now unless an earlier search did so, or a stored finding."""
    from fuzzcompile.front.commands.minimize import judge_subject, load_subject, resume_subject

    path = Path(name)
    if not path.is_file():
        return load_subject(require_corpus(store, name), name)
    if resume:
        return resume_subject(path, store, _locate_state(out or _choose_out(name)))
    click.echo(f"Judging {path} ...", err=True)
    return judge_subject(path, store, conditions)


def _explain_no_subject(name: str, conditions: Conditions) -> str:
    return CommandSubject(name, conditions.options()).format_command("triage")


def _describe_kept(kept: StoredReproducer, finding: str) -> Iterator[str]:
    """Yield sentences on the findings that the reproducer changed: one that is new, and those that were merged."""
    from fuzzcompile.corpus.records import public_id

    if kept.is_new_finding:
        yield f"The reproducer shows another cause than {finding}: it is {kept.public_id}, {kept.signature}."
    for key in kept.merged:
        yield f"{public_id(key)} is the same bug as {kept.public_id}, and was merged into it."


def _choose_out(name: str, finding: str | None = None) -> Path:
    stem = Path(name).stem if finding is None or Path(name).is_file() else finding
    return Path(f"repro_{stem}.py")


def _locate_state(out: Path) -> Path:
    return out.with_name(f"{out.name}.state")


def _judge_others(store: Store, small: MinimizeResult, conditions: Conditions, seconds: float) -> None:
    from fuzzcompile.front.commands.minimize import MOST_SECONDARY, store_secondary_findings

    sources, most = small.other_sources, min(MOST_SECONDARY, int(seconds / _SECONDS_OF_ANOTHER))
    if not most:
        click.echo("Of the candidates that failed in another way, the budget leaves no time to judge any.", err=True)
        return
    click.echo(f"Judging up to {most} of {len(sources)} candidates that failed in another way ...", err=True)
    for secondary in store_secondary_findings(store, sources, conditions, most):
        new = "new" if secondary.is_new else "known"
        click.echo(f"Secondary finding: {secondary.finding} ({new}), {secondary.verdict}, {secondary.signature}")


def _choose_status(small: MinimizeResult, out: Path, named: CommandSubject) -> int:
    """The exit status; the last line says what to do next."""
    if small.interrupted:
        return _INTERRUPTED
    if small.confirmed:
        click.echo(describe_confirmation(small, out, named))
    elif small.how != "as found":
        raise EnvironmentUnfit(
            f"{out} does not show the bug when run alone: {' '.join(small.confirmation.split())[-200:]}"
        )
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"Cannot write {path}: {error.strerror}; choose another --out.") from error
