"""``fuzzcompile mark``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.completing import findings
from fuzzcompile.errors import UsageError
from fuzzcompile.hints import command

if TYPE_CHECKING:
    from fuzzcompile.corpus import Mark

# What a status takes besides itself.
_TAKES = {"known": "ISSUE", "dup": "FINDING"}
_EXAMPLES = {"known": "#123", "dup": "F1"}


@click.command()
@click.argument("name", metavar="FINDING|GROUP", shell_complete=findings)
@click.argument("status", metavar="known|dup|fixed|invalid|wontfix|open")
@click.argument("of", required=False, metavar="[ISSUE|FINDING]")
@click.option("--note", default=None, help="Why, in your own words.")
@options.corpus
def mark(name: str, status: str, of: str | None, note: str | None, location: str | None) -> int:
    """Say what a finding is: known (ISSUE), a dup (of FINDING), fixed, invalid, wontfix, or open again.

    ISSUE is '#123' of pytorch/pytorch (quoted: to a shell, # begins a comment), owner/repository#123, or a URL. GROUP
    is a group of `fuzzcompile corpus list --all`, such as validation. What is said is kept through further hits,
    merges, exports and imports.
    """
    from fuzzcompile.corpus import Store

    given = _mark(name, status, of, note, location)
    with Store.open(location, create=False) as store:
        marked, said = store.mark(name, given)
    about = said.duplicate_of or said.issue
    click.echo(f"{marked}: {' '.join(filter(None, (said.status, about)))}{f' ({said.note})' if said.note else ''}")
    return 0


def _mark(name: str, status: str, of: str | None, note: str | None, location: str | None) -> Mark:
    from fuzzcompile.corpus import Mark
    from fuzzcompile.corpus.marking import issue_url, status_of

    known = status_of(status)
    takes = _TAKES.get(known)
    if takes is None and of is not None:
        raise UsageError(f"{known} takes nothing more, but {of!r} was given: put words into --note.")
    if takes is not None and of is None:
        example = command("mark", name, known, _EXAMPLES[known], corpus=location)
        raise UsageError(f"{known} needs the {takes}: such as `{example}`.")
    issue = issue_url(of) if known == "known" and of is not None else None
    return Mark(known, issue, of if known == "dup" else None, note)
