"""A script in a process and a folder of its own, run by whichever Python."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.run.alone import status_of

_SCRIPT, _OUTPUT = "repro.py", "output.txt"
_TAIL = 200_000  # bytes of output that are read


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
    command = [str(python), "-X", "faulthandler", _SCRIPT]
    # The compiler's own workers may write a last file after they were told to end.
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True) as folder:
        Path(folder, _SCRIPT).write_text(source, encoding="utf-8")
        # A file, not a pipe: the compiler's own workers may outlive the script and hold a pipe open.
        with Path(folder, _OUTPUT).open("w+b") as out:
            status = status_of(command, folder, environment, out, timeout, stop=stop, stack=True)
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - _TAIL))
            output = out.read().decode(errors="replace")
    return Ended(status, output, time.monotonic() - started)
