"""The place of a corpus, from the path or URL that the user gives."""

from __future__ import annotations

import re
from pathlib import Path

from fuzzcompile.privacy import without_password

# However its driver is spelt.
_POSTGRES = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")

FILE_NAME = "fuzzcompile.db"


def place_of_corpus(named: object) -> str:
    """The absolute path of the database, or the URL without its password; a folder stands for the database in it.

    Two names of one place give the same.
    """
    text = str(named).removeprefix("sqlite:///")
    if "://" in text:
        return _POSTGRES.sub("postgresql://", without_password(text))
    path = Path(text).expanduser().absolute()
    return str(path / FILE_NAME if path.is_dir() else path)
