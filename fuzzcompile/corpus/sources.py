"""What is imported from: a folder or a zip of exports, or another corpus, here or behind a URL."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzzcompile.corpus.failures import CorpusError
from fuzzcompile.corpus.importing import Export, exports_in_folder, exports_in_zip
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import FILE_NAME

_SQLITE = b"SQLite format 3\0"
_SECONDS = 60.0


@contextlib.contextmanager
def opened(location: str, into: Path | None) -> Iterator[Sequence[Export] | Iterator[Export] | Store]:
    """The exports, or the other corpus, at a path or URL; another corpus is only read, even where its schema is older.

    Args:
        location: a folder, a file, the URL of a file, or that of a database server.
        into: the file of the corpus that imports, if it is one: it is not its own source.

    Raises:
        UsageError: nothing there can be imported.
        CorpusError: what is there cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if location.startswith(("http://", "https://")):
            path = _download(location, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-"))))
        elif "://" in location:
            yield stack.enter_context(Store.open(location, create=False))
            return
        else:
            path = Path(location).expanduser()
        yield _opened_path(path, location, into, stack)


def _opened_path(
    path: Path, location: str, into: Path | None, stack: contextlib.ExitStack
) -> Sequence[Export] | Iterator[Export] | Store:
    if path.is_dir():
        exports = list(exports_in_folder(path))
        database = path / FILE_NAME
        if exports or not database.is_file():
            return exports if exports else _nothing(f"{location} holds no finding.json, in itself or below")
        path = database
    if not path.is_file():
        _nothing(f"There is no {location}")
    if into is not None and into.exists() and path.samefile(into):
        _nothing(f"{location} is the corpus itself")
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        if is_database:
            return stack.enter_context(_copy_of(path, stack))
        return exports_in_zip(stack.enter_context(zipfile.ZipFile(path)))
    except zipfile.BadZipFile:
        return _nothing(f"{location} is neither a corpus nor a zip of exports")
    except OSError as error:
        raise CorpusError(f"{location} cannot be read ({error.strerror}): name another file.") from error


def _copy_of(path: Path, stack: contextlib.ExitStack) -> Store:
    """A corpus opened in a copy: opening may bring the schema up to date, and the other's owner may not want that."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-")))
    copy = folder / FILE_NAME
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise CorpusError(f"The corpus {path} cannot be read ({error}): restore a copy of it.") from error
    return Store.open(copy, create=False)


def _download(url: str, folder: Path) -> Path:
    path = folder / "download"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except urllib.error.HTTPError as error:
        raise CorpusError(f"{url} cannot be had (HTTP {error.code}): check the address.") from error
    except (OSError, ValueError) as error:
        raise CorpusError(f"{url} cannot be had ({error}): check the network and the address.") from error
    return path


def _nothing(why: str) -> Sequence[Export]:
    raise UsageError(f"{why}: name a folder or a zip of exported findings, or another corpus.")
