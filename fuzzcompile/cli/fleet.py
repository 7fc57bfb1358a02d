"""``fuzzcompile fleet``: what all campaigns on a corpus do, and whether a second machine confirms a finding."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime

import click

from fuzzcompile.cli import options


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
    from fuzzcompile.corpus import Store
    from fuzzcompile.reporting.fleet_text import fleet_text

    with Store.open(location, create=False) as store:
        now, findings, place = store.fleet(datetime.now(UTC)), store.summaries(), store.location
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
