"""``fuzzcompile minimize``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fuzzcompile.front.cli import case_arguments, options
from fuzzcompile.front.cli.case_arguments import (
    ScriptCommand,
    find_case,
    open_existing_corpus,
    read_script_arguments,
    require_corpus,
    require_trusted,
)
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import read_target
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.programs.casefiles.case_file import count_processes

if TYPE_CHECKING:
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.front.minimize_case import MinimizeSubject
    from fuzzcompile.fuzz.campaign.budget import BudgetClock
    from fuzzcompile.programs.shrink.outcome import MinimizeResult
    from fuzzcompile.programs.shrink.search import SearchProgress
    from fuzzcompile.report.output_files import EventLog

# What judging a candidate that failed in another way may take, the start of a worker included.
_SECONDS_OF_ANOTHER = 15.0
# The exit status that shells give to a program that Ctrl-C ended.
_INTERRUPTED = 130


@click.command(cls=ScriptCommand)
@click.argument(
    "name", required=False, metavar="[CASE|FINDING]", shell_complete=case_arguments.complete_cases_and_findings
)
@options.model("name", str)
@click.option("--out", type=options.FILE, help="Where to write; default repro_NAME.py.")
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
    "--others", type=options.FOLDER, help="Folder for candidates that fail in another way (secondary findings)."
)
@click.option("--resume", is_flag=True, help="Continue an earlier search for this case.")
@click.option("--nproc", type=int, hidden=True)
@options.trust
@options.log
@options.conditions
@options.corpus
def minimize(nproc: int | None, **given: Any) -> int:
    """Minimize a case or a finding, and write a reproducer that needs only torch.

    A generated case from the corpus is first reduced through its recipe. Then, as for any other case or script, the
    graphs that dynamo captures are reduced, or the text of a case that several processes run (NPROC). The reproducer
    exits with 1 on the bug and with 0 once it is fixed. Ctrl-C keeps the best case so far; OUT.state keeps what was
    learned until a search is finished, for --resume.

    With --pending, every finding that a campaign had no time to minimize gets its reproducer in the corpus, and its
    issue draft in reports/drafts.
    """
    from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget, parse_seconds

    if nproc is not None:
        raise UsageError(
            f"A script is minimized in one process: write its model and inputs into a case file with `NPROC = {nproc}` "
            "(docs/cases.md), which is minimized in as many, and leave out --nproc."
        )
    command = _MinimizeCommand(arguments=read_script_arguments(), **given)
    if not command.pending:
        find_case(command.name)
    elif command.name or command.arguments or command.out or command.others or command.resume:
        raise UsageError("--pending minimizes what waits in the corpus: leave out the case, --out and --resume.")
    clock = BudgetClock(CampaignBudget(seconds=parse_seconds(command.budget, "minimize --budget")))
    return command.minimize_pending(clock) if command.pending else command.minimize_one(clock)


@dataclass
class _MinimizeCommand:
    name: str  # None with ``pending``
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
    arguments: tuple[str, ...]  # of a script

    def minimize_pending(self, clock: BudgetClock) -> int:
        """Minimize the findings that have no reproducer, in a campaign that judges no cases of its own.

        Those of another corpus are left out until they are trusted, and refused if there are no others.
        """
        from fuzzcompile.corpus.store import Store

        with Store.open(self.location, create=False) as store:  # before a worker is started: there may be none
            waiting = [finding for finding in store.summaries("open") if finding.reproducer_lines is None]
            if self.trusted or not any(finding.trusted for finding in waiting):
                require_trusted(store, waiting, trusted=self.trusted)
        from rich.console import Console

        from fuzzcompile.diagnosis.worker.local_pool import choose_worker_count
        from fuzzcompile.fuzz.campaign.campaign_display import CampaignProgress, format_starting, print_summary
        from fuzzcompile.fuzz.campaign.campaign_outputs import CampaignOutputs
        from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, start_workers
        from fuzzcompile.fuzz.generation.profile import Profile

        outputs = CampaignOutputs(self.log, None, None, self.location)
        workers = choose_worker_count(self.conditions.device)
        click.echo(format_starting(workers), err=True)
        with (
            outputs,
            start_workers(self.conditions, workers, clock) as started,
            CampaignProgress(Console(stderr=True)) as progress,
        ):
            summary = run_campaign(
                started.make_settings(Profile(), clock, seed=0, judges=False),
                started,
                location=self.location,
                command=hints.format_typed_line(),
                handlers=(outputs.log, progress.handle),
                clock=clock,
            )
            outputs.finish(summary)
        print_summary(Console(), summary, self.conditions.options(), judges=False)
        if summary.why is not None:
            raise EnvironmentUnfit(summary.why)
        return 0

    def minimize_one(self, clock: BudgetClock) -> int:
        from fuzzcompile.report.output_files import EventLog, check_writable, write_whole

        if self.out is not None:
            check_writable(self.out, "--out", parents=True)
        if find_case(self.name) is None:  # the program of a finding must be there, and one that may be run
            with open_existing_corpus(self.location) as store:
                finding = require_corpus(store, self.name).finding(self.name)
                require_trusted(require_corpus(store, self.name), [finding], trusted=self.trusted)

        from fuzzcompile.front.minimize_case import find_subject  # imports torch

        with EventLog(self.log) as events, open_existing_corpus(self.location) as store:
            state = _locate_state(self.out or self._choose_out(None)) if self.resume else None
            if state is None and Path(self.name).is_file():
                click.echo(f"Judging {self.name} ...", err=True)
            subject = find_subject(self.name, store, self.conditions, state, self.arguments)
            if subject is None:
                asking = CommandSubject(self.name, self._options()).format_command("triage")
                click.echo(f"{self.name} shows no bug: there is nothing to minimize. `{asking}` says why.")
                return 0
            out = self.out or self._choose_out(subject.finding)
            small = self._search(subject, out, events, clock)
            self._keep(store, subject, small, out, clock)
        if self.others is not None:
            for number, source in enumerate(small.other_sources, start=1):
                write_whole(self.others / f"{out.stem}_other_{number}.py", source.encode(), "--others")
        if small.interrupted:
            return _INTERRUPTED
        if small.confirmed:
            options = self.conditions.options() if subject.finding else self._options()
            named = CommandSubject(subject.finding or self.name, {**options, "corpus": self.location})
            click.echo(_describe_confirmation(small, out, named))
        elif small.how != "as found":
            said = " ".join(small.confirmation.split())[-200:]
            raise EnvironmentUnfit(f"{out} does not show the bug when run alone: {said}")
        return 0

    def _options(self) -> dict[str, object]:
        return {**self.conditions.options(), "arguments": self.arguments}

    def _choose_out(self, finding: str | None) -> Path:
        path = Path(self.name)
        return Path(f"repro_{path.stem if finding is None or path.is_file() else finding}.py")

    def _search(self, subject: MinimizeSubject, out: Path, events: EventLog, clock: BudgetClock) -> MinimizeResult:
        """Search for the smallest case; show and log the progress."""
        from rich.console import Console
        from rich.text import Text

        from fuzzcompile.front.minimize_case import choose_conditions, minimize

        self.conditions = choose_conditions(subject, self.conditions)
        click.echo(f"Minimizing: {subject.report['verdict']}, {subject.report['signature']} ...", err=True)
        bug = {"verdict": subject.report["verdict"], "signature": subject.report["signature"]}
        events.write("minimize_started", {"name": self.name, **bug})
        start, lines = time.monotonic(), sum(1 for line in subject.source.splitlines() if line.strip())
        operators: int | None = None
        with Console(stderr=True).status("Searching") as status:

            def show_progress(progress: SearchProgress) -> None:
                nonlocal operators
                operators = progress.operators if operators is None else operators
                events.write("candidate_probed", vars(progress))
                size = f"{lines} -> {progress.lines} lines"
                if progress.operators is not None and operators is not None:
                    size += f", {operators} -> {progress.operators} operators"
                used = f"{progress.compiles} compiles, {progress.screens} screens"
                text = f"  {time.monotonic() - start:4.0f} s  {size}  {used}  {progress.reducer}"
                status.update(Text(text))
                if progress.improved and not sys.stderr.isatty():
                    click.echo(text, err=True)

            small = minimize(
                subject,
                self.conditions,
                seconds=clock.remaining,
                compiles=self.compiles,
                keep=self.keep,
                state=_locate_state(out),
                resume=self.resume,
                on_progress=show_progress,
            )
        became = {"lines_before": small.lines_before, "lines": small.lines_after, "how": small.how}
        ended = {"confirmed": small.confirmed, "interrupted": small.interrupted, "note": small.note}
        cost = {"tests": small.tests, "seconds": round(small.seconds, 1)}
        events.write("minimize_finished", {"out": str(out), **became, **ended, **cost})
        return small

    def _keep(
        self, store: Store | None, subject: MinimizeSubject, small: MinimizeResult, out: Path, clock: BudgetClock
    ) -> None:
        """Store and write the reproducer, say so, and judge the candidates that failed in another way."""
        from fuzzcompile.corpus.records import public_id
        from fuzzcompile.front.minimize_case import MOST_SECONDARY, store_secondary_findings
        from fuzzcompile.fuzz.campaign.campaign_outputs import keep_reproducer
        from fuzzcompile.report.output_files import write_whole

        if store is not None and subject.finding is not None and not small.interrupted:
            kept = keep_reproducer(store, subject.finding, small)
            if kept.is_new_finding:
                cause = f"{kept.public_id}, {kept.signature}"
                click.echo(f"The reproducer shows another cause than {subject.finding}: it is {cause}.")
            for key in kept.merged:
                click.echo(f"{public_id(key)} is the same bug as {kept.public_id}, and was merged into it.")
        write_whole(out, small.reproducer.encode(), "--out")
        typed = {**self._options(), "corpus": self.location, "out": self.out, "others": self.others}
        for text in _describe_conclusion(small, out, CommandSubject(self.name, typed), self.others):
            click.echo(text)
        sources = small.other_sources
        if store is None or not sources or small.interrupted:
            return
        most = min(MOST_SECONDARY, int(clock.remaining / _SECONDS_OF_ANOTHER))
        if not most:
            text = "Of the candidates that failed in another way, the budget leaves no time to judge any."
            click.echo(text, err=True)
            return
        click.echo(f"Judging up to {most} of {len(sources)} candidates that failed in another way ...", err=True)
        for secondary in store_secondary_findings(store, sources, self.conditions, most):
            new = "new" if secondary.is_new else "known"
            click.echo(f"Secondary finding: {secondary.finding} ({new}), {secondary.verdict}, {secondary.signature}")


def _describe_conclusion(small: MinimizeResult, out: Path, named: CommandSubject, others: Path | None) -> Iterator[str]:
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
        where = "--others DIR writes them" if others is None else f"they are in {others}"
        yield f"{len(small.other_sources)} candidates failed in another way; {where}."
    if not small.finished:
        continues = named.format_command("minimize", resume=True)
        yield f"The budget, or --compiles, ended the search; `{continues}` continues it."


def _describe_confirmation(small: MinimizeResult, out: Path, named: CommandSubject) -> str:
    target = read_target(small.report)
    if target is None:
        nproc = count_processes(small.reproducer)
        where = "a clean process" if nproc is None else f"{nproc} clean processes"
        return f"Confirmed in {where}. Next: {hints.format_script(out, nproc)}; {named.format_command('issue')}"
    draft = named.with_options(target=target).format_command("issue")
    return f"Confirmed in a clean process for {target}, on no GPU. Next: python {out} on a machine with one; {draft}"


def _locate_state(out: Path) -> Path:
    return out.with_name(f"{out.name}.state")
