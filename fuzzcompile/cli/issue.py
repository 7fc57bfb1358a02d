"""``fuzzcompile issue``."""

from __future__ import annotations

from pathlib import Path

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.targets import existing_corpus, needed


@click.command()
@click.argument("target", metavar="FINDING|CASE")
@options.device
@options.corpus
def issue(target: str, device: str, location: str | None) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding or a case file."""
    from fuzzcompile.campaign.findings import draft_of
    from fuzzcompile.commands.issue import draft_of_file

    with existing_corpus(location) as store:
        if not Path(target).is_file():
            click.echo(draft_of(needed(store, target), target))
            return 0
    draft = draft_of_file(Path(target), device)
    click.echo(draft or f"{target} shows no bug: there is nothing to report. `fuzzcompile triage` says why.")
    return 0
