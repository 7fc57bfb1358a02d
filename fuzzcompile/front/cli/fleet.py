"""``fuzzcompile corpus fleet``: the state of all campaigns on a corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import open_corpus
from fuzzcompile.front.cli.finding_output import format_columns
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.hints import format_command

if TYPE_CHECKING:
    from fuzzcompile.corpus.fleet import Fleet, FleetCampaign, State
    from fuzzcompile.corpus.records import FindingSummary


@click.group()
def fleet() -> None:
    """Watch all campaigns that write to one corpus."""


@fleet.command(cls=FoldedCommand)
@options.corpus
@options.json_output
def status(location: str | None, as_json: bool) -> int:
    """Say which campaigns run, how fast machines judge, where they disagree, and what is confirmed.

    All of it is read from the corpus: no machine is asked. A campaign that has said nothing for three minutes went
    silent. A machine falls behind if a worker of it judges less than half as many cases a minute as the median of the
    machines with the same torch, device and target.
    """
    with open_corpus(location) as store:
        now, findings, place = store.fleet(), store.summaries(), store.location
    if not as_json:
        for line in fleet_text(now, findings, place):
            click.echo(line)
        return 0
    counts = Counter(finding.machines.second_machine for finding in findings if finding.status == "open")
    machines = [asdict(each) | {"behind": [kind for kind, *_ in each.behind]} for each in now.machines]
    second = {name: counts[name] for name in ("confirmed", "pending", "not reproduced")}
    told = {**asdict(now), "machines": machines, "open_findings": second}
    click.echo(json.dumps(told, default=datetime.isoformat))
    return 0


_STATES: dict[State, str] = {"runs": "running", "silent": "silent", "ended": "ended"}
_MOST_LISTED = 20
_CAMPAIGN = ("campaign", "state", "torch", "for", "machine", "workers", "cases", "a minute and worker", "new findings",
             "last heard")  # fmt: skip
_MACHINE = ("machine", "processor", "torch", "for", "cases in the last hour", "screens a minute and worker", "in full")


def fleet_text(fleet: Fleet, findings: Sequence[FindingSummary], corpus: str) -> Iterator[str]:
    """Lines on the whole: counts, tables, what wants attention, and the ``findings`` of the corpus at that place."""
    states = Counter(campaign.state for campaign in fleet.campaigns)
    if states:
        workers = sum(campaign.workers for campaign in fleet.campaigns if campaign.state == "runs")
        parts = ", ".join(f"{states[state]} {word}" for state, word in _STATES.items() if states[state])
        machines = len({each.machine for each in fleet.machines})
        yield (
            f"Campaigns of the last day: {parts}; {count_noun(workers, 'worker')} at work; "
            f"{count_noun(machines, 'machine')} judged cases in the last hour."
        )
        rows = [
            (
                each.id, each.ended or _STATES[each.state], each.torch, each.target or each.device, each.machine,
                each.workers, each.cases, f"{each.per_minute:.1f}", each.new_findings, _heard(fleet, each),
            )
            for each in fleet.campaigns
        ]  # fmt: skip
        yield from ("", *format_columns([_CAMPAIGN, *(tuple(map(str, row)) for row in rows)]))
    else:
        yield "No campaign was heard of in the last day."
    if fleet.machines:
        rates = ((each.speed.screened, each.speed.full) for each in fleet.machines)
        shown = (["-" if rate is None else f"{rate:.1f}" for rate in pair] for pair in rates)
        cells = (
            (each.machine, each.processor, each.torch, each.target or each.device, str(each.cases), *own)
            for each, own in zip(fleet.machines, shown, strict=True)
        )
        yield from ("", *format_columns([_MACHINE, *cells]))
    if attention := list(_list_attention(fleet)):
        yield from ("", *attention)
    yield ""
    yield f"New findings: {fleet.new_in_hour} in the last hour, {fleet.new_in_day} in the last day."
    counts = Counter(finding.machines.second_machine for finding in findings if finding.status == "open")
    confirming = format_command("replay", confirm=True, corpus=corpus)
    hint = f"; `{confirming}` on another machine asks it" if counts["pending"] else ""
    yield (
        f"Open findings: {counts['confirmed']} confirmed on a second machine, {counts['pending']} waiting for one, "
        f"{counts['not reproduced']} that did not show on one{hint}."
    )


def _list_attention(fleet: Fleet) -> Iterator[str]:
    """Yield a line for each campaign that went silent, each machine that falls behind, and each disagreement."""
    for campaign in fleet.campaigns:
        if campaign.state == "silent":
            yield (
                f"Went silent: campaign {campaign.id} on machine {campaign.machine}, last heard "
                f"{_heard(fleet, campaign)}: its process was killed, or cannot reach the corpus."
            )
    for machine in fleet.machines:
        for kind, own, usual in machine.behind:
            what = "screens" if kind == "screened" else "cases in full"
            yield (
                f"Falls behind: machine {machine.machine} ({machine.processor}) judges {own:.1f} {what} a minute and "
                f"worker; the median of the {machine.of} machines under torch {machine.torch} for "
                f"{machine.target or machine.device} is {usual:.1f}."
            )
    for case in fleet.disagreements[:_MOST_LISTED]:
        said = ", ".join(f"{each.verdict} on {each.machine} ({each.processor})" for each in case.judgements)
        finding = f" of {case.finding}" if case.finding is not None else ""
        yield f"Judged differently: case {case.case[:12]}{finding}: {said}; torch {case.torch}."
    more = len(fleet.disagreements) - _MOST_LISTED
    if more > 0:
        yield f"And {more} more cases, which --json lists."


def _heard(fleet: Fleet, campaign: FleetCampaign) -> str:
    seconds = int((fleet.at - campaign.last_heard).total_seconds())
    if seconds < 120:
        return f"{max(0, seconds)} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds // 3600} h ago"
