"""A command in a process group of its own, with a time limit, that leaves nothing running behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_POLL = 0.2
_DUMP = 5.0  # seconds in which a process that hangs may print where


class Stopped(Exception):
    """The caller's event was set while the command ran."""


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process without what steers Python, and with some variables more."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | dict(environment)


def status_of(
    command: Sequence[str],
    folder: str | Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    timeout: float,
    *,
    stop: threading.Event | None = None,
    stack: bool = False,
) -> int | None:
    """Exit status of a command in ``folder``; None if it was ended after ``timeout`` seconds.

    Args:
        command: what runs.
        folder: where.
        environment: variables more than this process has (`clean`).
        out: gets what it prints on either stream.
        timeout: seconds.
        stop: ends it when set.
        stack: a command that is ended for its time gets SIGABRT first, on which Python's faulthandler prints the stack.

    Raises:
        Stopped: ``stop`` was set.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=clean(environment),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        if _ends_within(process, timeout, stop):
            return process.returncode
        if stack:
            process.send_signal(signal.SIGABRT)
            _ends_within(process, _DUMP, stop)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ends_within(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event | None) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if stop is not None and stop.is_set():
            raise Stopped
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(left if stop is None else min(left, _POLL))
            return True
    return process.poll() is not None
