"""The address, state and changes of a cluster. Imports nothing of Dask."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fuzzcompile.model.errors import UsageError, format_message

_SCHEMES = ("tcp", "tls", "ws", "wss")
_PORT = 8786  # Dask's own default
_MOST_LOCAL = 256


@dataclass(frozen=True)
class ClusterAddress:
    """The scheduler's URL, the file in which it writes that, or how many Dask workers to start here with their own."""

    url: str | None = None
    file: Path | None = None
    local: int | None = None

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Read ``tcp://host:8786``, ``tls://host:8786``, the path of a scheduler file, or ``local:N``."""
        if text.startswith("local:"):
            number = text.removeprefix("local:")
            if number.isdecimal() and 1 <= int(number) <= _MOST_LOCAL:
                return cls(local=int(number))
            raise UsageError(f"--cluster {text}: write local:N with a number of Dask workers from 1 to {_MOST_LOCAL}.")
        if "://" in text:
            return cls(url=_parse_url(text))
        path = Path(text).expanduser()
        if path.is_file():
            cls(file=path).scheduler()
            return cls(file=path.resolve())
        if re.fullmatch(r"[\w.-]+:\d+", text):
            raise UsageError(f"--cluster {text}: write tcp://{text}, or tls://{text} for a cluster with TLS.")
        raise UsageError(
            f"--cluster {text}: there is no such scheduler file; an address is tcp://HOST:PORT or tls://HOST:PORT, and "
            "local:N starts N Dask workers on this machine."
        )

    def scheduler(self) -> str:
        """Return the scheduler's current address: its file is read again, because it may have restarted."""
        if self.file is None:
            return self.url or ""
        try:
            return _parse_url(str(json.loads(self.file.read_text(encoding="utf-8"))["address"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--cluster {self.file}: this is no scheduler file ({format_message(error, 100)}); "
                "`dask scheduler --scheduler-file FILE` writes one."
            ) from error

    def __str__(self) -> str:
        return self.url or (str(self.file) if self.file is not None else f"local:{self.local}")


def _parse_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--cluster {text}: {error}.") from error
    if parts.scheme not in _SCHEMES or not host:
        raise UsageError(f"--cluster {text}: write {'://, '.join(_SCHEMES)}:// and then HOST:PORT.")
    return text.rstrip("/") if port is not None else f"{text.rstrip('/')}:{_PORT}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# Changes of a cluster during a campaign, each formatted as one sentence; their fields are those of the log.


@dataclass(frozen=True)
class WorkerJoined:
    """A Dask worker was admitted: it runs ``slots`` cases at once on ``device`` under ``torch``."""

    worker: str
    machine: str
    slots: int
    torch: str
    device: str

    def __str__(self) -> str:
        cases = f"{_count(self.slots, 'case')} at a time on {self.device}"
        return f"Worker {self.worker} joins: {cases}, torch {self.torch}, machine {self.machine}"


@dataclass(frozen=True)
class WorkerLost:
    """An admitted Dask worker is gone, or answers no more; what it ran, ``tasks``, runs again elsewhere."""

    worker: str
    machine: str
    tasks: int
    why: str = "it is gone"

    def __str__(self) -> str:
        again = f"; {self.tasks} running there {'begins' if self.tasks == 1 else 'begin'} anew" if self.tasks else ""
        return f"Worker {self.worker} on machine {self.machine} is lost: {self.why}{again}"


@dataclass(frozen=True)
class WorkerRefused:
    """A Dask worker gets no case of this campaign."""

    worker: str
    why: str

    def __str__(self) -> str:
        return f"Worker {self.worker} is refused: {self.why}"


@dataclass(frozen=True)
class SchedulerLost:
    """The scheduler answers no more; the campaign waits for it for ``patience`` seconds."""

    scheduler: str
    patience: float

    def __str__(self) -> str:
        return f"The Dask scheduler at {self.scheduler} is lost; the campaign waits {self.patience:.0f} s for it"


@dataclass(frozen=True)
class SchedulerBack:
    """The scheduler answers again; what had been running begins anew."""

    scheduler: str
    tasks: int

    def __str__(self) -> str:
        return f"The Dask scheduler at {self.scheduler} is back; {self.tasks} running cases begin anew"


Change = WorkerJoined | WorkerLost | WorkerRefused | SchedulerLost | SchedulerBack


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
        where = f"{_count(self.workers, 'Dask worker')} on {_count(self.machines, 'machine')}"
        return f"{where}, {self.busy} of {self.slots} slots busy"
