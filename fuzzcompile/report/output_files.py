"""Files that a user named: checked before any work is done, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from fuzzcompile.model.errors import EnvironmentUnfit, FuzzcompileError, UsageError


def check_writable(path: Path, option: str, *, parents: bool = False) -> None:
    """Check that the file can be written, in ``parents`` to be made if that is set; UsageError names ``option``."""
    if path.is_dir():
        raise UsageError(f"Cannot write {path}: it is a folder; name a file for {option}.")
    if _is_stream(path):
        return
    draft = _draft(path)
    try:
        if parents:
            draft = next(above for above in path.parents if above.exists()) / draft.name
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise _unwritable(path, error, option) from error


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write the file, and folders above it, whole or not at all; EnvironmentUnfit or UsageError names ``option``.

    What a link points to is written, and a pipe or a device as it is.
    """
    draft = _draft(path.resolve())
    try:
        if _is_stream(path):
            path.write_bytes(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path.resolve())
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _unwritable(path, error, option) from error


def make_empty_folder(path: Path, option: str) -> None:
    """Make the folder, or accept one that is there and empty; UsageError names ``option``, which gave the path."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = any(path.iterdir())
        draft = _draft(path / "index")
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise UsageError(f"Cannot write into {path}: {error.strerror}; name another folder for {option}.") from error
    if taken:
        raise UsageError(f"{path} is not empty; name a new or an empty folder for {option}.")


def make_next_folder(wanted: Path, option: str) -> Path:
    """Make the folder, or the first of its name with a number behind it (from 2) that is not there yet."""
    for number in itertools.count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"Cannot make the folder {folder}: {error.strerror}; pass {option}.") from error
    return folder.resolve()


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _unwritable(path: Path, error: OSError, option: str) -> FuzzcompileError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentUnfit(f"Cannot write {path}: {error.strerror}; make room, or name another {option}.")
    return UsageError(f"Cannot write {path}: {error.strerror}; name another file for {option}.")


class EventLog:
    """Appends to a file, a line at a time, so that whatever ends the program leaves what happened before.

    Every object has ``time`` (UTC, ISO 8601 with microseconds) and ``event``, the event's name. Without a path, nothing
    is written.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the file; UsageError if it cannot be written."""
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1) if path is not None else None
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error.strerror}; name another file for --log.") from error

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Append an event; EnvironmentUnfit if it cannot be written, such as on a full disk."""
        if self._file is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="microseconds")
        line = json.dumps({"time": moment, "event": event, **fields}, allow_nan=False)
        try:
            self._file.write(f"{line}\n")
        except OSError as error:
            why = f"{error.strerror}; make room, or leave out --log."
            raise EnvironmentUnfit(f"Cannot write {self._path}: {why}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
