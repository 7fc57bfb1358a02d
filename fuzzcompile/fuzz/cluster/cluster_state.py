"""The address, state and changes of a cluster. Imports nothing of Dask."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fuzzcompile.model.errors import UsageError, format_message
from fuzzcompile.model.evidence import count_noun

_SCHEMES = ("tcp", "tls", "ws", "wss")
_PORT = 8786  # Dask's own default
_MOST_LOCAL = 256


@dataclass(frozen=True)
class ClusterAddress:
    """The scheduler's URL, the file in which it writes that, or how many Dask workers to start here with their own."""

    text: str
    local: int | None = None

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Read ``tcp://host:8786``, ``tls://host:8786``, the path of a scheduler file, or ``local:N``."""
        if text.startswith("local:"):
            number = text.removeprefix("local:")
            if number.isdecimal() and 1 <= int(number) <= _MOST_LOCAL:
                return cls(text, int(number))
            raise UsageError(f"--cluster {text}: write local:N with a number of Dask workers from 1 to {_MOST_LOCAL}.")
        if "://" in text:
            return cls(_parse_url(text))
        path = Path(text).expanduser()
        if path.is_file():
            address = cls(str(path.resolve()))
            address.scheduler()  # which raises where it is none
            return address
        if re.fullmatch(r"[\w.-]+:\d+", text):
            raise UsageError(f"--cluster {text}: write tcp://{text}, or tls://{text} for a cluster with TLS.")
        raise UsageError(
            f"--cluster {text}: there is no such scheduler file; an address is tcp://HOST:PORT or tls://HOST:PORT, and "
            "local:N starts N Dask workers on this machine."
        )

    def scheduler(self) -> str:
        """Return the scheduler's current address: its file is read again, because it may have restarted."""
        if "://" in self.text:
            return self.text
        try:
            return _parse_url(str(json.loads(Path(self.text).read_text(encoding="utf-8"))["address"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--cluster {self.text}: this is no scheduler file ({format_message(error, 100)}); "
                "`dask scheduler --scheduler-file FILE` writes one."
            ) from error

    def __str__(self) -> str:
        return self.text


def _parse_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--cluster {text}: {error}.") from error
    if parts.scheme not in _SCHEMES or not host:
        raise UsageError(f"--cluster {text}: write {'://, '.join(_SCHEMES)}:// and then HOST:PORT.")
    return text.rstrip("/") if port is not None else f"{text.rstrip('/')}:{_PORT}"


@dataclass(frozen=True)
class ClusterChange:
    """A change of a cluster during a campaign: its event in the log, the event's fields, and a sentence."""

    event: str
    sentence: str
    fields: Mapping[str, object]


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster: ``busy`` of ``slots`` run a case, on so many Dask ``workers`` and ``machines``."""

    scheduler: str
    dashboard: str
    workers: int = 0
    machines: int = 0
    slots: int = 0
    busy: int = 0
    connected: bool = True

    def __str__(self) -> str:
        if not self.connected:
            return f"waiting for the Dask scheduler at {self.scheduler}"
        where = f"{count_noun(self.workers, 'Dask worker')} on {count_noun(self.machines, 'machine')}"
        return f"{where}, {self.busy} of {self.slots} slots busy"
