"""Processes that this one starts and signals: commands with time limits, the C++ compiler, SIGTERM. No torch."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_POLL = 0.2
_DUMP = 5.0  # seconds in which a process that hangs may print where


class CommandStopped(Exception):
    """The caller's event was set while the command ran."""


def yield_to_others(pid: int | str, niceness: int) -> None:
    """Have a process that leads a session of its own yield as its niceness, of 0 to 19, asks.

    Linux weighs sessions against each other, and niceness within one (sched(7), "The autogroup feature"): without this,
    a process that is started so takes as much as any other session. Nothing where the kernel has none.
    """
    if niceness > 0:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


def _clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | dict(environment)


def capture_output(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
    stdout: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end without input, and read what it prints; ``environment`` is as of :func:`run_command`.

    Raises:
        OSError: the command cannot be run.
        subprocess.TimeoutExpired: it runs for longer than ``seconds``.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=_clean_environment(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def run_command(
    command: Sequence[str],
    folder: str | Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    timeout: float,
    *,
    stop: threading.Event | None = None,
    stack: bool = False,
) -> int | None:
    """Exit status of a command in ``folder``, in a process group that ends with it; None after ``timeout`` seconds.

    ``environment`` are variables more than this process has; what steers Python is left out. ``out`` gets what it
    prints on either stream. ``stop`` ends it when set. With ``stack`` a command that is ended for its time gets SIGABRT
    first, on which Python's faulthandler prints the stack.

    Raises:
        CommandStopped: ``stop`` was set.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=_clean_environment(environment),
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
            raise CommandStopped
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(left if stop is None else min(left, _POLL))
            return True
    return process.poll() is not None


INSTALL_HINT = "install g++ (for example `apt-get install g++`) or point CXX at a C++ compiler"
_REMEDY = "mend it, make room in the folder for temporary files, or point CXX at another C++ compiler"
_SECONDS = 60
# What every kernel needs: the standard library, position-independent code, and a linker.
_PROGRAM = (
    '#include <algorithm>\n#include <cmath>\nextern "C" float probe(float x) { return std::max(std::exp(x), x); }\n'
)


def find_cxx_compiler() -> Path | None:
    """The C++ compiler that Inductor calls: ``$CXX``, or g++ (clang++ on macOS). None if it isn't there."""
    default = "clang++" if platform.system() == "Darwin" else "g++"
    path = shutil.which(os.environ.get("CXX") or default)
    return Path(path) if path else None


def find_toolchain_fault() -> str | None:
    """The fault that keeps this machine from making a shared library of a few lines of C++; None without one.

    Takes half a second. The library goes into a folder for temporary files, which may be full.
    """
    compiler = find_cxx_compiler()
    if compiler is None:
        return f"there is no C++ compiler; {INSTALL_HINT}"
    try:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True) as folder:
            source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
            source.write_text(_PROGRAM, encoding="utf-8")
            done = capture_output([compiler, "-shared", "-fPIC", source, "-o", library], seconds=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{compiler} cannot be tried ({reason}); {_REMEDY}"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "cannot find" in line]
    complaint = (errors or lines[-1:] or ["it says nothing"])[0][:200]
    return f"{compiler} fails on a tiny program ({complaint}); {_REMEDY}"


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the block, in the main thread: a cancelled job still ends in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
