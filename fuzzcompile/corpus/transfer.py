"""Copies a corpus exactly, ids and all, into an empty one: between SQLite and PostgreSQL, or within either.

Tables are copied one after the other, in chunks by their keys, each chunk in a transaction of its own. Until the copy
is complete, the target says in place of its schema's revision that it is being copied into, and from where: every other
command refuses it, and the same copy resumes where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import sqlite3
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, Table, bindparam, func, insert, select, update

from fuzzcompile.corpus.connection import connect, explained_errors, keep_trying
from fuzzcompile.corpus.databases import is_server, reading, set_sequences, writing
from fuzzcompile.corpus.imports import MOST_BYTES, Export, describe_excess, exports_in_folder, exports_in_zip
from fuzzcompile.corpus.location import describe, find_file, require_file, resolve
from fuzzcompile.corpus.maintenance import COPYING, HEAD, bring_up_to_date, make_anew, read_state, restamp
from fuzzcompile.corpus.models import Base, CaseRow, RunRow
from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.privacy import strip_password
from fuzzcompile.model.settings import FILE_NAME, read_settings

# Rows of one transaction: reports and sources take some ten kilobytes each.
CHUNK = 500
# References of findings to rows of a later table, or of the same one: they are set when all rows are there.
_LATER = ("best_run_id", "best_reproducer_id", "duplicate_of_id")
_TABLES = [table for table in Base.metadata.sorted_tables if "id" in table.columns]
_SMALL = [table for table in Base.metadata.sorted_tables if table.name not in ("cases", "runs")]
# What changes of the large tables, whose rows it would take long to read.
_CHANGES = (
    select(func.count(), func.max(CaseRow.id), func.count(CaseRow.choices)),
    select(func.count()).where(CaseRow.source == ""),
    select(func.count()).where(CaseRow.imported),
    select(func.count(), func.max(RunRow.id), func.sum(RunRow.finding_id), func.sum(RunRow.case_id)),
)

OnProgress = Callable[[str, int, int], object]


@dataclass
class Transferred:
    """What a copy has done: ``rows`` of each table are there, of which this call copied ``copied``.

    ``resumed`` tells that the rest came with an earlier call, ``restarted`` that what an earlier call copied was
    dropped, because the source had changed since.
    """

    source: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    copied: int = 0
    resumed: bool = False
    restarted: bool = False


def transfer(source: str, target: str | None, on_progress: OnProgress) -> Transferred:
    """Copy the corpus at ``source`` to ``target``, both paths or URLs, or go on with a copy of it.

    The source is only read, in one state. The target is an empty database, none yet, or a copy that was begun; None for
    that of the settings. ``on_progress`` is called with a table, how many of its rows are there, and how many there
    will be.
    """
    given, wanted = resolve(source), resolve(target)
    if describe(given) == describe(wanted):
        raise UsageError(f"{describe(wanted)} is the corpus that is to be copied: name another place.")
    for url, create in ((given, False), (wanted, True)):
        if (path := find_file(url)) is not None:
            require_file(path, create=create)
    with ExitStack() as stack:
        ours, theirs = (connect(url) for url in (given, wanted))
        for engine in (ours, theirs):
            stack.callback(engine.dispose)
        copy = _Transfer(ours, theirs, on_progress)
        done, patience = copy.done, float(str(read_settings().find_value("patience")))
        keep_trying(lambda: bring_up_to_date(ours, create=False), done.source, patience, opening=True)
        keep_trying(lambda: read_state(theirs), done.target, patience, opening=True)
        keep_trying(copy.run, f"{done.source} or {done.target}", patience)
        return done


class _Transfer:
    """One copy; a server that is lost meanwhile, on either side, is waited for, and the copy resumed."""

    def __init__(self, source: Engine, target: Engine, on_progress: OnProgress) -> None:
        self._source, self._target, self._on_progress = source, target, on_progress
        self.done = Transferred(describe(source.url), describe(target.url))
        self._begun = False  # by this call, which may begin again after an outage

    def run(self) -> None:
        """Copy what is missing."""
        with explained_errors(self._source.url), reading(self._source).connect() as source:
            if is_server(self._source):  # a slow target is no reason to lose the state that is read
                source.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            place = hashlib.sha256(self.done.source.encode()).hexdigest()
            mark = f"{COPYING}{place[:8]}{_fingerprint(source)[:16]}"
            with explained_errors(self._target.url):
                self._begin(mark)
                for table in Base.metadata.sorted_tables:
                    total = self._read(source, select(func.count()).select_from(table))[0][0]
                    self.done.rows[table.name] = total
                    while copied := self._copy_chunk(source, table, mark):
                        self.done.copied += copied
                        with self._target.connect() as target:
                            there = target.scalar(select(func.count()).select_from(table)) or 0
                        self._on_progress(table.name, there, total)
                self._finish(source, mark)

    def _begin(self, mark: str) -> None:
        """Claim an empty target, or go on where a copy of the same state stopped."""
        state = read_state(self._target)
        if state == mark:
            self.done.resumed = self.done.resumed or not self._begun
            self._begun = True
            return
        if state is not None and state.startswith(COPYING):
            if state[: len(COPYING) + 8] != mark[: len(COPYING) + 8]:
                raise UsageError(f"{self.done.target} is being copied into from another corpus: name another place.")
            self.done.restarted, self.done.resumed, self.done.copied = True, False, 0
        elif state == HEAD:
            with self._target.connect() as target:
                filled = any(target.execute(select(table).limit(1)).first() for table in Base.metadata.sorted_tables)
            if filled:
                importing = format_command("corpus", "import", self.done.source, corpus=self.done.target)
                raise UsageError(
                    f"{self.done.target} holds a corpus: `{importing}` adds one to another; a copy needs an empty "
                    "place."
                )
        elif state is not None:
            raise UsageError(f"{self.done.target} holds another version's corpus: name another place.")
        self._begun = True
        make_anew(self._target.url, mark)

    def _copy_chunk(self, source: Connection, table: Table, mark: str) -> int:
        """Copy the next rows of a table in a transaction; return how many there were."""
        with writing(self._target).begin() as target:
            self._insist(target, mark)
            chosen = select(table)
            if table in _TABLES:
                last = target.scalar(select(func.max(table.c.id))) or 0
                chosen = chosen.where(table.c.id > last).order_by(table.c.id).limit(CHUNK)
            elif target.execute(select(table).limit(1)).first() is not None:
                return 0
            later = dict.fromkeys(_LATER if table.name == "findings" else ())
            rows = [{**row._mapping, **later} for row in self._read(source, chosen)]
            if rows:
                target.execute(insert(table), rows)
            return len(rows)

    def _read(self, source: Connection, query: Select[Any]) -> Sequence[Row[Any]]:
        """Rows of the source: when it is lost while the target is written to, it is the one to wait for."""
        with explained_errors(self._source.url):
            return source.execute(query).all()

    def _finish(self, source: Connection, mark: str) -> None:
        """Set the references that were left out, compare, and let the target be a corpus."""
        with writing(self._target).begin() as target:
            self._insist(target, mark)
            findings = Base.metadata.tables["findings"]
            rows = self._read(source, select(findings.c.id, *(findings.c[column] for column in _LATER)))
            setting = update(findings).where(findings.c.id == bindparam("key"))
            setting = setting.values({column: bindparam(f"to_{column}") for column in _LATER})
            keys = ("key", *(f"to_{column}" for column in _LATER))
            if rows:
                target.execute(setting, [dict(zip(keys, row, strict=True)) for row in rows])
            for table in Base.metadata.sorted_tables:
                if target.scalar(select(func.count()).select_from(table)) != self.done.rows[table.name]:
                    raise CorpusError(
                        f"{self.done.target} differs from {self.done.source} in {table.name}: another program wrote "
                        "there meanwhile; remove that copy, and make another."
                    )
            if is_server(self._target):
                set_sequences(target, [table.name for table in _TABLES])
            restamp(target, HEAD)

    def _insist(self, target: Connection, mark: str) -> None:
        """Another process may be copying too: both go on as long as it is the same copy."""
        if read_state(target) != mark:
            raise CorpusError(f"Another process has changed {self.done.target} meanwhile: run the copy again.")


def _fingerprint(connection: Connection) -> str:
    """What tells one state of a corpus from another."""
    digest = hashlib.sha256()
    for query in _CHANGES:
        digest.update(repr([int(value or 0) for value in connection.execute(query).one()]).encode())
    for table in _SMALL:
        key = next(iter(table.primary_key.columns))
        for row in connection.execute(select(table).order_by(key)).yield_per(CHUNK):
            digest.update(repr(tuple(row)).encode(errors="surrogatepass"))
    return digest.hexdigest()


# What is imported from: a folder or a zip of exports, or another corpus, here or behind a URL.

_SQLITE = b"SQLite format 3\0"
_SECONDS = 60.0


@contextlib.contextmanager
def opened(location: str, into: Path | None) -> Iterator[Iterable[Export] | Store]:
    """The exports, or the other corpus, at a path or URL; another corpus is only read, even where its schema is older.

    ``location`` is a folder, a file, the URL of a file, or that of a database server; ``into`` is the file of the
    corpus that imports, if it is one: it is not its own source.
    """
    with ExitStack() as stack:
        if location.startswith(("http://", "https://")):
            path = _download(location, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-"))))
        elif "://" in location:
            yield stack.enter_context(Store.open(location, create=False))
            return
        else:
            path = Path(location).expanduser()
        yield _open_path(path, location, into, stack)


def _open_path(path: Path, location: str, into: Path | None, stack: ExitStack) -> Iterable[Export] | Store:
    if path.is_dir():
        exports, path = exports_in_folder(path, location), path / FILE_NAME
        if (first := next(exports, None)) is not None:
            return itertools.chain([first], exports)
        if path.is_symlink():
            raise _nothing(f"{path} is a symbolic link, and links in a folder are not followed")
        if not path.is_file():
            raise _nothing(f"{location} holds no finding.json, in itself or below")
    if not path.is_file():
        raise _nothing(f"There is no {location}")
    if into is not None and into.exists() and path.samefile(into):
        raise _nothing(f"{location} is the corpus itself")
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        if is_database:
            return stack.enter_context(_copy_source(path, stack))
        return exports_in_zip(stack.enter_context(zipfile.ZipFile(path)), strip_password(location))
    except zipfile.BadZipFile:
        raise _nothing(f"{location} is neither a corpus nor a zip of exports") from None
    except OSError as error:
        raise CorpusError(f"{location} cannot be read ({error.strerror}): name another file.") from error


def _copy_source(path: Path, stack: ExitStack) -> Store:
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
    path, place = folder / "download", strip_password(url)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            data = answer.read(MOST_BYTES + 1)  # what the answer says of its length need not be so
        if len(data) > MOST_BYTES:
            raise UsageError(f"{describe_excess(place)}: download it by other means, and import the file.")
        path.write_bytes(data)
    except urllib.error.HTTPError as error:
        raise CorpusError(f"{place} cannot be had (HTTP {error.code}): check the address.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CorpusError(f"{place} cannot be had ({error}): check the network and the address.") from error
    return path


def _nothing(why: str) -> UsageError:
    return UsageError(f"{why}: name a folder or a zip of exported findings, or another corpus.")
