"""``fuzzcompile issue``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.subjects import existing_corpus, needed
from fuzzcompile.errors import UsageError
from fuzzcompile.worker.conditions import Conditions, running_device

if TYPE_CHECKING:
    from fuzzcompile.corpus import Store


@click.command()
@click.argument("name", metavar="FINDING|CASE")
@options.device
@options.target
@options.corpus
@click.option(
    "--search", is_flag=True, help="First search PyTorch's issues and pull requests for reports on the finding."
)
@click.option(
    "--json", "as_json", is_flag=True, help="With --search: print what the search found as JSON, and no draft."
)
def issue(name: str, device: str, target: str | None, location: str | None, search: bool, as_json: bool) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding or a case file.

    --search asks GitHub's search API, with the token of GITHUB_TOKEN or GH_TOKEN if there is one. What it finds is kept
    in the corpus and stands in the draft.
    """
    from fuzzcompile.campaign.findings import draft_of
    from fuzzcompile.commands.issue import draft_of_file

    if as_json and not search:
        raise UsageError("--json prints what --search found: give both.")
    if search and Path(name).is_file():
        raise UsageError(f"--search is for findings of a corpus, and {name} is a file.")
    with existing_corpus(location) as store:
        if search and _search(needed(store, name), name, as_json=as_json):
            return 0
        if not Path(name).is_file():
            click.echo(draft_of(needed(store, name), name))
            return 0
    draft = draft_of_file(Path(name), Conditions(running_device(device, target), target=target))
    click.echo(draft or f"{name} shows no bug: there is nothing to report. `fuzzcompile triage` says why.")
    return 0


def _search(store: Store, name: str, *, as_json: bool) -> bool:
    """Search, and print the links; whether that is all that was asked."""
    from fuzzcompile.commands.search import search_reports

    found = search_reports(store, name, lambda sentence: click.echo(sentence, err=True))
    # The draft, with the links, has stdout for itself.
    click.echo(json.dumps(found.to_json(), allow_nan=False) if as_json else found.to_text(), err=not as_json)
    return as_json
