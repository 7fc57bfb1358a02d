"""A log of what a command does, as JSON Lines: an object for each event, written when it happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError


class EventLog:
    """Appends to a file, a line at a time, so that whatever ends the program leaves what happened before.

    Every object has ``time`` (UTC, ISO 8601 with microseconds) and ``event``, the event's name. Without a path, nothing
    is written.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the file.

        Raises:
            UsageError: it cannot be written.
        """
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1) if path is not None else None
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error.strerror}; name another file for --log.") from error

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Append an event.

        Raises:
            EnvironmentUnfit: it cannot be written, such as on a full disk.
        """
        if self._file is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="microseconds")
        line = json.dumps({"time": moment, "event": event, **fields}, allow_nan=False)
        try:
            self._file.write(f"{line}\n")
        except OSError as error:
            raise EnvironmentUnfit(
                f"Cannot write {self._path}: {error.strerror}; make room, or leave out --log."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
