"""Completions that a shell offers for arguments: names of the corpus, read without loading more than SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from fuzzcompile.errors import UsageError
from fuzzcompile.settings import in_force, place_of_corpus

_MOST = 500  # names offered


def findings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of findings."""
    rows = _rows(context, "SELECT id, verdict FROM findings ORDER BY id DESC LIMIT ?")
    named = [(f"F{number}", str(verdict)) for number, verdict in rows]
    return [CompletionItem(name, help=verdict) for name, verdict in named if name.startswith(incomplete.upper())]


def cases_and_findings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of findings; files where no id begins so."""
    return [CompletionItem(incomplete, type="file"), *findings(context, parameter, incomplete)]


def rewrites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Rewrites and passes that campaigns saw at work."""
    rows = _rows(context, "SELECT DISTINCT rewrite FROM rewrite_coverage ORDER BY 1 LIMIT ?")
    return [CompletionItem(str(name)) for (name,) in rows if str(name).startswith(incomplete)]


def _rows(context: click.Context, query: str) -> Iterator[tuple[object, ...]]:
    """Rows of the corpus that the command line or the settings name; none where it cannot be read."""
    try:
        named = context.params.get("location") or in_force().value("corpus")
    except UsageError:  # the command itself says what is wrong with the settings
        return
    place = place_of_corpus(named)
    if "://" in place:
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{Path(place).as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection,
    ):
        yield from connection.execute(query, (_MOST,))
