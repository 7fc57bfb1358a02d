"""``fuzzcompile issue``."""

from __future__ import annotations

from pathlib import Path

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.subjects import existing_corpus, needed
from fuzzcompile.worker.conditions import Conditions, running_device


@click.command()
@click.argument("name", metavar="FINDING|CASE")
@options.device
@options.target
@options.corpus
def issue(name: str, device: str, target: str | None, location: str | None) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding or a case file."""
    from fuzzcompile.campaign.findings import draft_of
    from fuzzcompile.commands.issue import draft_of_file

    with existing_corpus(location) as store:
        if not Path(name).is_file():
            click.echo(draft_of(needed(store, name), name))
            return 0
    draft = draft_of_file(Path(name), Conditions(running_device(device, target), target=target))
    click.echo(draft or f"{name} shows no bug: there is nothing to report. `fuzzcompile triage` says why.")
    return 0
