"""A script in a process and a folder of its own, run by whichever Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_SCRIPT, _OUTPUT = "repro.py", "output.txt"
_TAIL = 200_000  # bytes of output that are read
_POLL = 0.2
_DUMP = 5.0  # seconds in which a script that hangs may print where


class Stopped(Exception):
    """The replay was interrupted while a script ran."""


@dataclass(frozen=True)
class Ended:
    """How a script ended: ``status`` is negative for a signal, and None if it was still running after its time."""

    status: int | None
    output: str
    seconds: float


def run_script(
    python: Path, source: str, environment: Mapping[str, str], *, timeout: float, stop: threading.Event
) -> Ended:
    """Run a script alone, with what it prints on either stream.

    A script that crashes prints its Python stack, and so does one that is still running after ``timeout`` seconds.

    Raises:
        Stopped: ``stop`` was set; the script and what it had started have been ended.
    """
    started = time.monotonic()
    # The compiler's own workers may write a last file after they were told to end.
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True) as folder:
        Path(folder, _SCRIPT).write_text(source, encoding="utf-8")
        # A file, not a pipe: the compiler's own workers may outlive the script and hold a pipe open.
        with Path(folder, _OUTPUT).open("w+b") as out:
            status = _status(python, folder, clean(environment), out, timeout, stop)
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - _TAIL))
            output = out.read().decode(errors="replace")
    return Ended(status, output, time.monotonic() - started)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process without what steers Python, and with some variables more."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | dict(environment)


def _status(
    python: Path, folder: str, environment: dict[str, str], out: IO[bytes], timeout: float, stop: threading.Event
) -> int | None:
    process = subprocess.Popen(
        [python, "-X", "faulthandler", _SCRIPT],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        if _ends_within(process, timeout, stop):
            return process.returncode
        process.send_signal(signal.SIGABRT)  # on which Python's faulthandler prints the stack
        _ends_within(process, _DUMP, stop)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ends_within(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if stop.is_set():
            raise Stopped
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(left, _POLL))
            return True
    return process.poll() is not None
