"""``fuzzcompile issue``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.completing import cases_and_findings
from fuzzcompile.cli.subjects import case_named, existing_corpus, needed, require_finding
from fuzzcompile.errors import UsageError
from fuzzcompile.worker.conditions import Conditions

if TYPE_CHECKING:
    from fuzzcompile.reporting.facts import IssueFacts


@click.command()
@click.argument("name", metavar="FINDING|GROUP|CASE", shell_complete=cases_and_findings)
@click.option("--anyway", is_flag=True, help="Print the draft of what is not to be filed, the reason on top.")
@options.conditions
@options.corpus
@click.option(
    "--search", is_flag=True, help="First search PyTorch's issues and pull requests for reports on the finding."
)
@options.json_output
def issue(name: str, anyway: bool, conditions: Conditions, location: str | None, search: bool, as_json: bool) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding, a group of minor findings, or a case file.

    The group `validation` holds what compiles although eager refuses it: its draft is one issue with a table.

    What is not to be filed gets the reason instead, on stderr: no bug, a suspect without proof, fixed in the newest
    torch that was tried, known already, or a rule of PyTorch's for fuzzers that is not met.

    --search asks GitHub's search API, with the token of GITHUB_TOKEN or GH_TOKEN if there is one. What it finds is kept
    in the corpus and stands in the draft.
    """
    path = case_named(name)
    if path is None and (draft := _of_group(name, location)) is not None:
        click.echo(json.dumps({"group": name, "draft": draft}) if as_json else draft, nl=as_json)
        return 0
    if search and path is not None:
        raise UsageError(f"--search is for findings of a corpus, and {name} is a file.")
    found = _search(name, location, as_json=as_json) if search else {}
    facts = _facts(path or name, conditions, location)
    return _printed(name, facts, found, anyway=anyway, as_json=as_json)


def _of_group(name: str, location: str | None) -> str | None:
    """The draft of a group of findings; None for any other name."""
    from fuzzcompile.campaign.findings import umbrella_draft

    with existing_corpus(location) as store:
        return None if store is None else umbrella_draft(store, name)


def _search(name: str, location: str | None, *, as_json: bool) -> dict[str, object]:
    """Return the results of a search as JSON, and print them as text unless ``as_json``."""
    from fuzzcompile.commands.search import search_reports

    with existing_corpus(location) as store:
        found = search_reports(needed(store, name), name, lambda sentence: click.echo(sentence, err=True))
    if not as_json:
        click.echo(found.to_text(), err=True)  # the draft has stdout for itself
    return found.to_json()


def _facts(subject: Path | str, conditions: Conditions, location: str | None) -> IssueFacts:
    if isinstance(subject, str):
        require_finding(subject, location)

    from fuzzcompile.campaign.findings import facts_of
    from fuzzcompile.commands.issue import facts_of_file

    with existing_corpus(location) as store:
        if isinstance(subject, str):
            return facts_of(needed(store, subject), subject)
    click.echo(f"Judging {subject} and making its script (half a minute or more) ...", err=True)
    return facts_of_file(subject, conditions)


def _printed(name: str, facts: IssueFacts, found: Mapping[str, object], *, anyway: bool, as_json: bool) -> int:
    from fuzzcompile.reporting.filing import refusal_of
    from fuzzcompile.reporting.issue import draft_issue

    refusal = refusal_of(facts)
    draft = draft_issue(facts, refusal) if refusal is None or anyway else None
    if as_json:
        answer = {
            "finding": name,
            "fileable": refusal is None,
            "reason": refusal and refusal.reason,
            "remedy": refusal and refusal.remedy,
            "draft": draft,
            **found,
        }
        click.echo(json.dumps(answer, allow_nan=False))
    elif draft is not None:
        click.echo(draft, nl=False)
    elif refusal is not None:
        hint = " `--anyway` prints the draft." if facts.is_bug else ""
        click.echo(f"{name} is not to be filed: {refusal.reason}.", err=True)
        click.echo(f"What would change that: {refusal.remedy}.{hint}", err=True)
    return 0
