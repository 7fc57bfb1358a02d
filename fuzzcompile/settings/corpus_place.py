"""Where a corpus lies, from what the user calls it."""

from __future__ import annotations

from pathlib import Path

FILE_NAME = "fuzzcompile.db"


def place_of_corpus(named: object) -> str:
    """The absolute path of the database, or the URL as it is; a folder stands for the database in it."""
    text = str(named).removeprefix("sqlite:///")
    if "://" in text:
        return text
    path = Path(text).expanduser().absolute()
    return str(path / FILE_NAME if path.is_dir() else path)
