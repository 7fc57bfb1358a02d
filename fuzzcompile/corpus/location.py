"""The location of a corpus: from what the user typed to a database URL."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import locate_corpus, read_settings

POSTGRES = "postgresql"
# What people and hosts of databases write for it.
_POSTGRES = (POSTGRES, "postgres")


def resolve(location: str | os.PathLike[str] | None) -> URL:
    """Return the URL of a path, of a URL, or (None) of the settings (:mod:`fuzzcompile.settings`).

    A folder stands for the corpus in it, if it holds one. The path is made absolute, because connections are
    opened later and the working folder may have changed by then.
    """
    given = str(location or read_settings().find_value("corpus"))
    if "://" in given:
        return _parse(given)
    path = Path(locate_corpus(given))
    if Path(given).expanduser().is_dir() and not path.is_file():
        raise UsageError(f"The corpus {given} is a folder; name a file in it, such as {Path(given) / path.name}.")
    return URL.create("sqlite", database=str(path))


def find_file(url: URL) -> Path | None:
    """The file that holds an SQLite corpus; None for a database server."""
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def describe(url: URL) -> str:
    """Return the corpus's name for messages: its path, or its URL without passwords, fit to be given again."""
    if url.get_backend_name() == POSTGRES:
        url = url.set(drivername=POSTGRES)
    return str(find_file(url) or strip_password(url.render_as_string(hide_password=False)))


def require_file(path: Path, *, create: bool) -> None:
    """Make the folder of an SQLite corpus, or, without ``create``, insist that the file exists."""
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        present = path.exists()
    except OSError as error:
        raise CorpusError(
            f"The folder of the corpus {path} cannot be used ({error.strerror}): name a writable place with --corpus."
        ) from error
    if not create and not present:
        start = format_command("run", corpus=path)
        raise CorpusError(f"There is no corpus at {path}: start one with `{start}`, or name yours with --corpus.")


def _parse(given: str) -> URL:
    try:
        url = make_url(given)
        if "@" in (url.host or ""):  # a part of the password, which the driver would tell
            raise ValueError
    except (ArgumentError, ValueError):
        # Without what the parser says, which may be a part of the password.
        raise CorpusError(
            "The corpus URL cannot be read: give a path, or a URL such as postgresql://user@host/database "
            "(with %40 for @ in a password)."
        ) from None
    if url.get_backend_name() in _POSTGRES:
        return url.set(drivername=f"{POSTGRES}+psycopg")
    if url.get_backend_name() != "sqlite":
        return url
    database = url.database or ":memory:"
    if database == ":memory:" or database.startswith("file:"):
        raise CorpusError(
            "A corpus in memory would be lost, and SQLite's file: URIs are not taken: give a path instead."
        )
    return url.set(database=str(Path(database).absolute()))
