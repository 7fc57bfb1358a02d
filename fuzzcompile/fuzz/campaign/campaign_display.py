"""A campaign's display: a live panel on a terminal, plain lines elsewhere, and the summary of both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fuzzcompile.fuzz.campaign.budget import CampaignBudget, format_duration, format_progress
from fuzzcompile.fuzz.campaign.campaign_events import (
    CampaignTally,
    Event,
    FindingFound,
    FindingLine,
    FindingReduced,
    FindingsMerged,
    Finished,
    Started,
    Tick,
    Trouble,
)
from fuzzcompile.fuzz.cluster.cluster_state import ClusterChange
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.report.circumstances import counted_line, divided

_PLAIN_INTERVAL = 10.0
_MOST_WORKERS = 24  # lines of the panel


class CampaignProgress(contextlib.ExitStack):
    """Shows the events of a campaign: a line each, and the state in a panel, or in a line every ten seconds.

    Only a terminal has the panel, which is redrawn until the block ends.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._budget: CampaignBudget | None = None
        self._last = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = self.enter_context(Live(console=console, refresh_per_second=4, transient=True))

    def handle(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Started):
            self._budget = event.budget
        if isinstance(event, Tick):
            self._show_state(event)
        elif (line := _describe_event(event)) is not None:
            self._console.print(Text(line), soft_wrap=True)

    def _show_state(self, event: Tick) -> None:
        if self._live is not None:
            self._live.update(_make_panel(event, self._budget))
        elif time.monotonic() - self._last >= _PLAIN_INTERVAL:
            self._last = time.monotonic()
            cluster = f"; {event.cluster}" if event.cluster is not None else ""
            status = f"{format_progress(event.tally.seconds, self._budget)}: {_format_tally(event.tally)}{cluster}"
            self._console.print(Text(status), soft_wrap=True)


def format_starting(workers: int) -> str:
    """Format the message shown before the first event."""
    return f"Starting {count_noun(workers, 'worker')}: importing torch, registering the compiler's patterns ..."


def print_summary(
    console: Console, summary: Finished, typed: Mapping[str, object] | None = None, *, judges: bool = True
) -> None:
    """Print the results of a campaign, and the commands to type next, with the options ``typed``.

    Without ``judges``, it minimized findings of the corpus.
    """
    asked, tally = {**(typed or {}), "corpus": summary.corpus}, summary.tally

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say("")
    if not judges:
        minimized = count_noun(len(summary.findings), "finding")
        say(f"Ended after {format_duration(tally.seconds)}: {minimized} minimized.")
        if summary.behind.waiting:
            later = _format_minimize_command(asked)
            say(f"Waiting for minimization: {count_noun(summary.behind.waiting, 'finding')}. Next: {later}")
        for text in _describe_foreign(summary):
            say(text)
        _say_findings(say, summary, asked)
        return
    rate = f"{tally.cases_per_minute:.1f}/min; {tally.screened} screened"
    counted = f"{tally.cases} cases ({rate}), {tally.rewrites} rewrites covered"
    say(f"Campaign {_ENDED[summary.ended]} after {format_duration(tally.seconds)}: {counted}.")
    say(f"Verdicts: {_format_verdicts(tally, ', ') or 'none'}.")
    if summary.target is not None:
        say(f"Told {summary.target}, run on the CPU: a clean case means nothing found in the stages looked at.")
    for certified in summary.certified:
        say(str(certified["sentence"]))
    for text in _describe_source(summary.source):
        say(text)
    for text in summary.focus.format_lines() if summary.focus is not None else ():
        say(f"Focus: {text}")
    say(f"Corpus: {summary.corpus}")
    for text in _list_remaining_work(summary, asked):
        say(text)
    if not summary.findings:
        return
    new = sum(line.new for line in summary.findings)
    say(f"Findings: {len(summary.findings)} distinct, {new} of them new; the corpus holds {summary.behind.findings}.")
    _say_findings(say, summary, asked)


def _describe_source(source: Mapping[str, object]) -> Iterator[str]:
    left_out = source.get("left_out")
    if not isinstance(left_out, Mapping):
        return
    swept = f"{source['samples']} samples of torch's tables; {source['operators']} operators, {source['places']} places"
    yield f"Swept: {swept}."
    if left_out:
        yield "Left out: " + "; ".join(f"{count} {reason}" for reason, count in left_out.items()) + "."


def _format_minimize_command(asked: Mapping[str, object]) -> str:
    return CommandSubject("", asked).format_command("minimize", pending=True)


def _say_findings(say: Callable[[str], None], summary: Finished, asked: Mapping[str, object]) -> None:
    shown, counted = divided(summary.findings)
    for line in shown:
        say(f"  {line.finding}  {line.severity}  {line.verdict}  {line.culprit}{_format_mark(line)}")
        say(f"      {_describe_proof(line)}")
        say(f"      next: {_format_next(line, asked)}")
    if counted:
        listing = format_command("corpus", "list", all=True, corpus=summary.corpus)
        say(f"  {'Beside them ' if shown else ''}{counted_line(counted, listing)}")


def _list_remaining_work(summary: Finished, asked: Mapping[str, object]) -> Iterator[str]:
    """Yield lines on unfinished work and, if this campaign hit no finding, on earlier findings of the corpus."""
    behind = summary.behind
    if not summary.tally.cases and summary.ended in ("budget", "interrupted") and behind.cases:
        yield "The time was up before the first case was judged: starting the workers takes most of so short a budget."
    if behind.cases:
        bugs = f", {behind.bugs} of which had shown a bug" if behind.bugs else ""
        yield f"Cut off: {count_noun(behind.cases, 'case')}{bugs}; the next run on this corpus judges them first."
    if behind.waiting:
        verb = "waits" if behind.waiting == 1 else "wait"
        yield f"{count_noun(behind.waiting, 'finding')} {verb} for minimization: {_format_minimize_command(asked)}"
    yield from _describe_foreign(summary)
    if summary.findings:
        return
    listing = format_command("corpus", "list", corpus=summary.corpus)
    earlier = f"This campaign hit no finding; the corpus holds {behind.findings} of earlier ones: {listing}"
    yield earlier if behind.findings else "No findings. Next: a longer budget or another --seed."


def _describe_foreign(summary: Finished) -> Iterator[str]:
    if foreign := summary.behind.foreign:
        trusting = format_command("corpus", "trust", all=True, corpus=summary.corpus)
        untrusted = count_noun(foreign, "finding")
        yield f"Imported, and not run until they are read and trusted: {untrusted}. Then: {trusting}"


_ENDED = {
    "budget": "ended with its budget",
    "max-findings": "ended at --max-findings",
    "exhausted": "ended because this seed is exhausted: no further case can be drawn, but another --seed draws others",
    "interrupted": "interrupted",
    "failed": "failed",
}


def _format_mark(line: FindingLine) -> str:
    return "" if line.status == "open" else f"  [{' '.join(filter(None, (line.status, line.issue)))}]"


def _describe_proof(line: FindingLine) -> str:
    without = {
        True: "gone without the culprit",
        False: "not proved: it stays without the culprit",
        None: "not tried without it",
    }
    parts = [without[line.necessary], f"{line.hits} hit{'s' if line.hits != 1 else ''}"]
    if line.reproducer_lines is None:
        parts.append("not minimized yet")
    else:
        state = "confirmed in a clean process" if line.confirmed else "not confirmed"
        parts.append(f"reproducer of {line.reproducer_lines} lines, {state}")
    if line.draft:
        parts.append(f"draft {line.draft}")
    return "; ".join(parts)


def _format_next(line: FindingLine, asked: Mapping[str, object]) -> str:
    named = CommandSubject(line.finding, asked)
    if line.reproducer_lines is None:
        return named.format_command("minimize")
    return named.format_command("issue") if line.confirmed else named.format_command("corpus", "show")


def _describe_event(event: Event) -> str | None:
    if isinstance(event, Started):
        if not event.judges:
            return f"Minimizing the findings of {event.corpus} that have no reproducer, budget {event.budget}."
        known = f", resuming after {event.known} cases" if event.known else ""
        workers = count_noun(event.workers, "worker") if event.cluster is None else f"the cluster at {event.cluster}"
        return (
            f"Campaign {event.campaign}: seed {event.seed}, budget {event.budget}, {workers} on {event.device}, corpus "
            f"{event.corpus}{known}."
        )
    if isinstance(event, FindingFound):
        return f"Found {event.finding}: {event.verdict}, {event.culprit}."
    if isinstance(event, FindingReduced):
        small = event.minimized
        state = "confirmed" if small.confirmed else "NOT confirmed alone"
        return (
            f"Minimized {event.finding}: {small.lines_before} lines to {small.lines_after} with its check, "
            f"{small.tests} tests in {small.seconds:.0f} s, {state}."
        )
    if isinstance(event, FindingsMerged):
        return f"Merged {', '.join(event.merged)} into {event.finding}: the same bug."
    if isinstance(event, Trouble):
        return f"Trouble: {event.what}"
    return f"{event.sentence}." if isinstance(event, ClusterChange) else None


def _format_tally(tally: CampaignTally) -> str:
    return (
        f"{tally.cases} cases, {tally.cases_per_minute:.1f}/min, {tally.screened} screened; "
        f"{_format_verdicts(tally, ', ') or 'no verdict yet'}; {tally.findings} findings; "
        f"{tally.rewrites} rewrites covered"
    )


def _format_verdicts(tally: CampaignTally, between: str) -> str:
    return between.join(f"{name} {count}" for name, count in sorted(tally.verdicts.items()))


def _make_panel(event: Tick, budget: CampaignBudget | None) -> RenderableType:
    tally = event.tally
    facts = Table.grid(padding=(0, 2))
    facts.add_row("elapsed", format_progress(tally.seconds, budget))
    facts.add_row("cases", f"{tally.cases}  ({tally.cases_per_minute:.1f}/min; {tally.screened} screened)")
    facts.add_row("verdicts", _format_verdicts(tally, "  "))
    facts.add_row("findings", f"{tally.findings} distinct, {tally.new_findings} new")
    facts.add_row("rewrites covered", str(tally.rewrites))
    if event.cluster is not None:
        facts.add_row("cluster", str(event.cluster))
        facts.add_row("dashboard", event.cluster.dashboard or "none")
    workers = Table.grid(padding=(0, 2))
    for worker in event.workers[:_MOST_WORKERS]:
        task, since = worker.task or ("" if worker.ready else "starting"), worker.busy_since
        doing = f"{task} ({time.monotonic() - since if since is not None else 0.0:.0f} s)" if task else "idle"
        workers.add_row(f"worker {worker.slot}", worker.device, doing)
    return Group(facts, workers)
