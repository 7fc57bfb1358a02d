"""The value of ``--cluster``: the address or file of a scheduler, or Dask workers of this machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fuzzcompile.errors import UsageError

_SCHEMES = ("tcp", "tls", "ws", "wss")
_PORT = 8786  # Dask's own default
_MOST_LOCAL = 256


@dataclass(frozen=True)
class ClusterAddress:
    """The location of the scheduler: exactly one of the fields is set.

    Attributes:
        url: its address, such as ``tcp://host:8786``.
        file: the file in which it writes its address.
        local: so many Dask workers are started on this machine, with a scheduler of their own.
    """

    url: str | None = None
    file: Path | None = None
    local: int | None = None

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Read ``tcp://host:8786``, ``tls://host:8786``, the path of a scheduler file, or ``local:N``.

        Raises:
            UsageError: it is none of them.
        """
        if text.startswith("local:"):
            return cls(local=_number_of_workers(text))
        if "://" in text:
            return cls(url=_url(text))
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
        """Return the scheduler's current address: the file is read again, because the scheduler may have restarted.

        Raises:
            UsageError: the file does not hold an address.
        """
        if self.url is not None:
            return self.url
        assert self.file is not None, "workers of this machine have no address until they are started"
        try:
            return _url(str(json.loads(self.file.read_text(encoding="utf-8"))["address"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--cluster {self.file}: this is no scheduler file ({' '.join(str(error).split())[:100]}); "
                "`dask scheduler --scheduler-file FILE` writes one."
            ) from error

    def __str__(self) -> str:
        return self.url or (str(self.file) if self.file is not None else f"local:{self.local}")


def _number_of_workers(text: str) -> int:
    number = text.removeprefix("local:")
    if not number.isdecimal() or not 1 <= int(number) <= _MOST_LOCAL:
        raise UsageError(f"--cluster {text}: write local:N with a number of Dask workers from 1 to {_MOST_LOCAL}.")
    return int(number)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--cluster {text}: {error}.") from error
    if parts.scheme not in _SCHEMES or not host:
        raise UsageError(f"--cluster {text}: write {'://, '.join(_SCHEMES)}:// and then HOST:PORT.")
    return text.rstrip("/") if port is not None else f"{text.rstrip('/')}:{_PORT}"
