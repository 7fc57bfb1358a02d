"""Ends a worker with everything it started, even when the parent is the one that died.

The parent starts this file as a small process of its own, which waits on a pipe: when the parent is
gone, for whatever reason, the pipe closes and the workers that were left are ended. A thread in the worker
could not do it (a task hung in C++ may hold the GIL), nor could PR_SET_PDEATHSIG (it follows the thread
that spawned, and spares the worker's children).

Runs with ``python -I -S``: the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

#: Every process below a worker carries this variable, and in it the worker's mark.
MARK_VARIABLE = "FUZZCOMPILE_WORKER"


def get_worker_folder(mark: str) -> Path:
    """The folder for temporary files of the worker with this mark, and of everything that it starts."""
    return Path(tempfile.gettempdir(), f"fuzzcompile-worker-{mark}")


def end_tree(pid: int, mark: str) -> None:
    """Kill the process, its process group, its descendants, and whatever carries its mark elsewhere.

    ``pid`` must be a process that has not been waited for yet: its number may be reused afterwards.
    """
    below = list_descendants(pid)  # before it dies: its children get another parent then
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    end_processes(below)
    for _ in range(20):  # a process may fork meanwhile; one that is stuck in the kernel cannot be killed
        strays = list_marked(mark)
        for stray in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)
        if not strays:
            return
        time.sleep(0.01)


def list_marked(mark: str) -> list[int]:
    """The live processes that carry this mark in their environment."""
    needle = mark.encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes():
                pids.append(int(entry.name))
    return [pid for pid in pids if pid != os.getpid()]


def list_descendants(pid: int) -> dict[int, str]:
    """The processes below ``pid``, each with the time at which it was started, as the kernel counts it."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent, start = _read_parent_and_start(int(entry.name))
            parents[int(entry.name)], started[int(entry.name)] = parent, start
    below: dict[int, str] = {}
    pending = [pid]
    while pending:
        above = pending.pop()
        children = [child for child, parent in parents.items() if parent == above and child not in below]
        below.update({child: started[child] for child in children})
        pending += children
    return below


def end_processes(started: dict[int, str]) -> None:
    """Kill processes, given with their start times, unless their numbers belong to other processes by now."""
    for pid, start in started.items():
        with contextlib.suppress(OSError, IndexError):
            if _read_parent_and_start(pid)[1] == start:
                os.kill(pid, signal.SIGKILL)


def _read_parent_and_start(pid: int) -> tuple[int, str]:
    # The second field is the program's name in brackets, and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[1]), fields[19]


class Reaper:
    """The parent's handle on the process that outlives it; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, str] = {}
        self._process = self._start()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C and a kill of the parent's process group leave it alone.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int, mark: str) -> None:
        """End this worker, should the parent die."""
        with self._lock:
            self._watched[pid] = mark
            self._send_line(f"+ {pid} {mark}\n")

    def forget(self, pid: int) -> None:
        """Stop watching a worker that is gone, as its number may soon be reused."""
        with self._lock:
            self._watched.pop(pid, None)
            self._send_line(f"- {pid} .\n")

    def close(self) -> None:
        """Let the process end; what is still watched is ended with it."""
        with self._lock:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()

    def _send_line(self, line: str) -> None:
        try:
            self._write(line)
        except BrokenPipeError:  # the reaper was killed
            self._process.wait()
            self._process = self._start()
            for pid, mark in self._watched.items():
                self._write(f"+ {pid} {mark}\n")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


def main() -> None:
    """Follow the parent's lines until it is gone, then end the workers that are left."""
    watched: dict[int, str] = {}
    for line in sys.stdin:
        sign, pid, mark = line.split()
        if sign == "+":
            watched[int(pid)] = mark
        else:
            watched.pop(int(pid), None)
    for left, its_mark in watched.items():
        end_tree(left, its_mark)
        shutil.rmtree(get_worker_folder(its_mark), ignore_errors=True)


if __name__ == "__main__":
    main()
