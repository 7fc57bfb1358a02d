"""``fuzzcompile completion``: the shell completes commands, options and names of findings."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import locate_corpus, read_settings

# Completions that a shell offers for arguments: names of the corpus, read without loading more than SQLite.

_MOST_NAMES = 500  # names offered


def complete_findings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of findings."""
    rows = _query_corpus(context, "SELECT id, verdict FROM findings ORDER BY id DESC LIMIT ?")
    named = [(f"F{number}", str(verdict)) for number, verdict in rows]
    return [CompletionItem(name, help=verdict) for name, verdict in named if name.startswith(incomplete.upper())]


def complete_cases_and_findings(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of findings; files where no id begins so."""
    return [CompletionItem(incomplete, type="file"), *complete_findings(context, parameter, incomplete)]


def complete_rewrites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Rewrites and passes that campaigns saw at work."""
    rows = _query_corpus(context, "SELECT DISTINCT rewrite FROM rewrite_coverage ORDER BY 1 LIMIT ?")
    return [CompletionItem(str(name)) for (name,) in rows if str(name).startswith(incomplete)]


def _query_corpus(context: click.Context, query: str) -> Iterator[tuple[object, ...]]:
    """Rows of the corpus that the command line or the settings name; none where it cannot be read."""
    try:
        named = context.params.get("location") or read_settings().find_value("corpus")
    except UsageError:  # the command itself says what is wrong with the settings
        return
    place = locate_corpus(named)
    if "://" in place:
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{Path(place).as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection,
    ):
        yield from connection.execute(query, (_MOST_NAMES,))


_SHELLS = ("bash", "zsh", "fish")
# The words after `completion` of earlier versions.
_FORMER = ("install", "uninstall", "show")


@click.command()
@click.argument("shell", required=False)
def completion(shell: str | None) -> int:
    """Print the completion script for SHELL (bash, zsh or fish; default: $SHELL).

    Let the shell read it when it starts: `eval "$(fuzzcompile completion bash)"` in ~/.bashrc, the same with zsh in
    ~/.zshrc (behind compinit), and `fuzzcompile completion fish | source` in ~/.config/fish/config.fish.
    """
    known = ", ".join(_SHELLS)
    if shell in _FORMER:
        raise UsageError(f"`completion {shell}` is `completion SHELL` now ({known}): it prints the script.")
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise UsageError(
            f"There is no completion for {name or 'the shell, since $SHELL is empty'}: name one of {known}."
        )
    made = get_completion_class(name)
    assert made is not None  # click has those of _SHELLS
    cli = click.get_current_context().find_root().command
    click.echo(made(cli, {}, "fuzzcompile", "_FUZZCOMPILE_COMPLETE").source(), nl=False)
    return 0
