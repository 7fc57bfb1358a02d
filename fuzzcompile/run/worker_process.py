"""The pool's side of one worker process: start it, talk to it, inspect it, end it with its children.

The worker is a fresh interpreter started through subprocess rather than multiprocessing, which could not give it a
session and a stdout of its own before the first line of Python runs in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

from fuzzcompile.run.reaper import MARK_VARIABLE, Reaper, descendants, end_processes, end_tree, folder_of
from fuzzcompile.run.worker import DUMP_STACKS, Payload, Reply

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    "from fuzzcompile.run.worker import main; main(int(sys.argv[1]))"
)
_OUTPUT_LINES = 200  # two threads with torch.compile on their stacks; the frames that matter come first
_OUTPUT_WIDTH = 300
_LOG_LIMIT = 16 * 2**20
_KILL_PATIENCE = 10.0  # seconds until a killed process that is stuck in the kernel is given up
_END_PATIENCE = 1.0  # seconds between the end of a process's files and its own
_STOP_PATIENCE = 3.0  # seconds that a worker has to run its exit handlers


class WorkerEnded(Exception):
    """The worker's end of the pipe is closed: it died or was killed."""


class WorkerProcess:
    """One running worker. One thread talks to it; any thread may inspect it and kill it.

    Args:
        reaper: ends the worker when this process is gone.
        environment: variables that the worker has besides those of this process.
    """

    def __init__(self, reaper: Reaper, environment: Mapping[str, str]) -> None:
        self._reaper = reaper
        self._mark = uuid.uuid4().hex
        self._folder = folder_of(self._mark)
        self._log = _append_only_file()
        self._last_output = ""
        self._lock = threading.Lock()
        self._reaped = False
        self._killed_at: float | None = None
        self._connection, far_end = multiprocessing.Pipe()
        self._folder.mkdir(mode=0o700)
        with far_end:  # with our copy closed, the worker's death is the end of file
            try:
                self._process = self._start(far_end.fileno(), environment)
            except OSError:
                self._folder.rmdir()
                raise
        self.pid = self._process.pid
        self._memory = psutil.Process(self.pid)
        reaper.watch(self.pid, self._mark)

    def _start(self, descriptor: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        search_path = [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]
        return subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(descriptor), json.dumps(search_path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(descriptor,),
            env=os.environ
            | {
                MARK_VARIABLE: f"{os.environ.get(MARK_VARIABLE, '')}:{self._mark}",
                # Large tensors go back to the system when they are freed, so that what is resident is what is used.
                "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
                # What a killed worker or compiler leaves behind is deleted with this folder.
                "TMPDIR": str(self._folder),
                "PYTHONFAULTHANDLER": "1",
                "PYTHONUNBUFFERED": "1",  # the last lines before a crash are the ones that matter
            }
            | dict(environment),
            start_new_session=True,  # Ctrl-C goes to the terminal's group: the parent decides
        )

    def send(self, message: object) -> None:
        """Raises WorkerEnded."""
        self._send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _send_bytes(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise WorkerEnded from error

    def receive(self) -> tuple[Reply, Payload]:
        """Wait for the next reply; raises WorkerEnded."""
        try:
            while not self._connection.poll(1.0):
                if self._killed_at is not None and time.monotonic() - self._killed_at > _KILL_PATIENCE:
                    raise WorkerEnded
            kind, payload = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerEnded from error
        return kind, payload

    def alive(self) -> bool:
        """Whether the process runs. Does not reap it, so that its number is not reused."""
        with self._lock:
            if self._reaped:
                return False
            try:
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            except ChildProcessError:
                return False

    def resident_bytes(self) -> int:
        """The worker's resident memory in bytes without its children's; 0 if the worker is gone."""
        try:
            return int(self._memory.memory_info().rss)
        except psutil.Error:
            return 0

    def dump_stacks(self) -> None:
        """Make the worker write its Python stacks to its log, even if it is stuck in C."""
        with self._lock:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, DUMP_STACKS)

    def kill(self) -> None:
        """End it and everything it started, at once. Has no effect if it is gone already."""
        with self._lock:
            if not self._reaped:
                end_tree(self.pid, self._mark)
            if self._killed_at is None:
                self._killed_at = time.monotonic()

    def stop(self) -> None:
        """Ask it to exit, running its exit handlers; processes left after some seconds are killed."""
        below = descendants(self.pid) if self.alive() else {}
        with contextlib.suppress(WorkerEnded):
            self._send_bytes(b"")
        deadline = time.monotonic() + _STOP_PATIENCE
        while self.alive() and self._killed_at is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.bury()
        end_processes(below)  # children without the worker's mark, of a worker that exited by itself

    def lives_without_line(self) -> bool:
        """Whether it still runs although its end of the pipe is closed; a worker that is ending gets a second."""
        deadline = time.monotonic() + _END_PATIENCE
        while self.alive():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def bury(self) -> int | None:
        """Kill what is left, release everything, and return the exit code if it is known.

        ``output`` can still be read.
        """
        with self._lock:
            if self._reaped:
                return self._process.returncode
            end_tree(self.pid, self._mark)
            self._reaped = True  # no signal is sent from here on: the number may be reused
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_PATIENCE)
        self._reaper.forget(self.pid)
        with self._lock:
            self._last_output = self._with_statements(self._read_log())
            self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._connection.close()
        return self._process.returncode

    def clear_log(self) -> None:
        """Empty the log for the next task."""
        with self._lock:
            if not self._log.closed:
                os.ftruncate(self._log.fileno(), 0)

    def log_overflows(self) -> bool:
        """Whether the task has printed so much that the disk might fill up."""
        with self._lock:
            return not self._log.closed and os.fstat(self._log.fileno()).st_size > _LOG_LIMIT

    def output(self) -> str:
        """The last lines that the worker printed to stdout or stderr during the task."""
        with self._lock:
            return self._last_output if self._log.closed else self._read_log()

    def _with_statements(self, output: str) -> str:
        """The output with the statements on which stacks stand in files that go with this worker."""

        def shown(match: re.Match[str]) -> str:
            try:
                lines = Path(match[1]).read_text(encoding="utf-8").splitlines()
                return f"{match[0]}\n    {lines[int(match[2]) - 1].strip()[:_OUTPUT_WIDTH]}"
            except (OSError, ValueError, IndexError):
                return match[0]

        return re.sub(
            rf'^  File "({re.escape(str(self._folder))}/[^"]+)", line (\d+) in .*$', shown, output, flags=re.M
        )

    def _read_log(self) -> str:
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - _OUTPUT_LINES * _OUTPUT_WIDTH)
        text = os.pread(descriptor, _OUTPUT_LINES * _OUTPUT_WIDTH, start).decode(errors="replace")
        return "\n".join(line[:_OUTPUT_WIDTH] for line in text.splitlines()[-_OUTPUT_LINES:])


def _append_only_file() -> IO[bytes]:
    """A file without a name, gone with its last user, that can be truncated while another process writes to it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as its worker
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)
    return file
