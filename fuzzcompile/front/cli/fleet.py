"""``fuzzcompile fleet``: the state of all campaigns on a corpus, and confirmation of findings on a second machine."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import datetime

import click

from fuzzcompile.front.cli import completion, options
from fuzzcompile.front.cli.case_arguments import require_trusted
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import UsageError


@click.group()
def fleet() -> None:
    """Watch all campaigns that write to one corpus, and confirm findings on a second machine."""


@fleet.command()
@options.corpus
@options.json_output
def status(location: str | None, as_json: bool) -> int:
    """Say which campaigns run, how fast machines judge, where they disagree, and what is confirmed.

    All of it is read from the corpus: no machine is asked. A campaign that has said nothing for three minutes went
    silent. A machine falls behind if a worker of it judges less than half as many cases a minute as the median of the
    machines with the same torch, device and target.
    """
    from fuzzcompile.corpus.store import Store
    from fuzzcompile.report.fleet_text import fleet_text

    with Store.open(location, create=False) as store:
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


@fleet.command()
@click.argument("findings", nargs=-1, metavar="[FINDING]...", shell_complete=completion.complete_findings)
@options.trust
@options.json_output
@options.conditions
@options.corpus
def confirm(
    findings: tuple[str, ...], trusted: bool, as_json: bool, conditions: Conditions, location: str | None
) -> int:
    """Judge findings that were seen on one machine on this one, all that wait for it if none is named.

    The best reproducer of a finding, or its case, is judged under the same torch, device and target. Both answers are
    stored: that it shows here too, which confirms it, and that it does not. Campaigns do the same now and then.
    """
    from fuzzcompile.corpus.store import Store

    if conditions.vetoes or conditions.plants or conditions.custom != Custom():
        raise UsageError("Another compiler confirms nothing: leave out --veto, --plant, --pass and --backend.")
    counts: Counter[str] = Counter()
    with Store.open(location, create=False) as store:
        named = [store.finding(name) for name in findings]
        require_trusted(store, named, trusted=trusted)
        names = list(dict.fromkeys(finding.public_id for finding in named))

        from fuzzcompile.front.commands.confirm import confirm as judge_here  # imports torch

        for answer in judge_here(
            store, names, conditions, on_start=lambda name: click.echo(f"Judging {name} ...", err=True)
        ):
            counts[answer.result] += 1
            if as_json:
                click.echo(json.dumps(asdict(answer)))
            else:
                click.echo(f"{answer.finding}: {answer.result}; {answer.note}.")
    summed = ", ".join(f"{count} {result}" for result, count in counts.items())
    click.echo(summed or "No finding waits for a machine like this one.", err=True)
    return 3 if counts["not judged"] else 0
