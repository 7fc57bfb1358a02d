"""The pool's side of one worker process: its line, its log, its limits, and its end with all that it started."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil

from fuzzcompile.run.pool.reaper import (
    MARK_VARIABLE,
    Reaper,
    end_processes,
    end_tree,
    get_worker_folder,
    list_descendants,
)
from fuzzcompile.run.pool.worker import DUMP_STACKS, Payload, WorkerReply
from fuzzcompile.run.subprocesses import yield_to_others

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    "from fuzzcompile.run.pool.worker import main; main(int(sys.argv[1]))"
)
_OUTPUT_LINES = 200  # two threads with torch.compile on their stacks; the frames that matter come first
_OUTPUT_WIDTH = 300
LOG_LIMIT = 16 * 2**20  # bytes of a log, beyond which the disk might fill up
_KILL_PATIENCE = 10.0  # seconds until a killed process that is stuck in the kernel is given up
_END_PATIENCE = 1.0  # seconds between the end of a process's files and its own
_STACK_PATIENCE = 0.05  # seconds that a hanging worker has to write its stacks
_STOP_PATIENCE = 3.0  # seconds that a worker has to run its exit handlers


class WorkerEnded(Exception):
    """The worker's end of the pipe is closed: it died or was killed."""


class WorkerProcess:
    """The pool's side of one worker process. One thread talks to it; any thread may inspect it and kill it.

    ``reaper`` ends the worker when this process is gone; ``environment`` are variables beside those of this process.
    """

    def __init__(self, reaper: Reaper, environment: Mapping[str, str]) -> None:
        self._reaper = reaper
        self._mark = uuid.uuid4().hex
        self._folder = get_worker_folder(self._mark)
        self._last_output = ""
        self._lock = threading.Lock()
        self._reaped = False
        self._killed_at: float | None = None
        self._connection, far_end = multiprocessing.Pipe()
        search_path = [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]
        own_variables = {
            MARK_VARIABLE: f"{os.environ.get(MARK_VARIABLE, '')}:{self._mark}",
            # Large tensors go back to the system when they are freed, so that what is resident is what is used.
            "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
            # What a killed worker or compiler leaves behind is deleted with this folder.
            "TMPDIR": str(self._folder),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",  # the last lines before a crash are the ones that matter
        }
        self._folder.mkdir(mode=0o700)
        log = self._folder / "output"
        with far_end:  # with our copy closed, the worker's death is the end of file
            try:
                self._log = log.open("a+b")  # appends also after it was truncated while the worker writes
                log.unlink()
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, str(far_end.fileno()), json.dumps(search_path)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=(far_end.fileno(),),
                    env={**os.environ, **own_variables, **environment},
                    start_new_session=True,  # Ctrl-C goes to the terminal's group: the parent decides
                )
            except OSError:
                self._folder.rmdir()
                raise
        self.pid = self._process.pid
        yield_to_others(self.pid, os.nice(0))
        self._memory = psutil.Process(self.pid)
        reaper.watch(self.pid, self._mark)

    def send(self, message: object) -> None:
        """Send a message, None to have the worker exit; raises WorkerEnded."""
        try:
            self._connection.send_bytes(b"" if message is None else pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise WorkerEnded from error

    def receive(self) -> tuple[WorkerReply, Payload]:
        """Wait for the next reply; raises WorkerEnded."""
        try:
            while not self._connection.poll(1.0):
                if self._killed_at is not None and time.monotonic() - self._killed_at > _KILL_PATIENCE:
                    raise WorkerEnded
            kind, payload = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerEnded from error
        return kind, payload

    def is_alive(self) -> bool:
        """Return whether the process runs. Does not reap it, so that its number is not reused."""
        with self._lock:
            if self._reaped:
                return False
            try:
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            except ChildProcessError:
                return False

    def measure_resident_bytes(self) -> int:
        """The worker's resident memory in bytes without its children's; 0 if the worker is gone."""
        try:
            return int(self._memory.memory_info().rss)
        except psutil.Error:
            return 0

    def kill(self, *, shows_stacks: bool = False) -> None:
        """End it and everything it started, at once. Has no effect if it is gone already.

        It first writes its Python stacks to its log if it ``shows_stacks``, even if it is stuck in C.
        """
        with self._lock:
            if not self._reaped:
                if shows_stacks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, DUMP_STACKS)
                        time.sleep(_STACK_PATIENCE)
                end_tree(self.pid, self._mark)
            if self._killed_at is None:
                self._killed_at = time.monotonic()

    def stop(self) -> None:
        """Ask it to exit, running its exit handlers; processes left after some seconds are killed."""
        below = list_descendants(self.pid) if self.is_alive() else {}
        with contextlib.suppress(WorkerEnded):
            self.send(None)
        self.lives_on(_STOP_PATIENCE)
        self.release()
        end_processes(below)  # children without the worker's mark, of a worker that exited by itself

    def lives_on(self, seconds: float = _END_PATIENCE) -> bool:
        """Wait for its end at most so long, and return whether it still runs, or was killed."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if self._killed_at is not None or time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    def release(self) -> int | None:
        """Kill all remaining processes, release all but the ``output``, and return the exit code if it is known."""
        with self._lock:
            if self._reaped:
                return self._process.returncode
            end_tree(self.pid, self._mark)
            self._reaped = True  # no signal is sent from here on: the number may be reused
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_PATIENCE)
        self._reaper.forget(self.pid)
        with self._lock:
            self._last_output = self._add_statements(self._read_log())
            self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._connection.close()
        return self._process.returncode

    def clear_log(self, *, keep: int = 0) -> None:
        """Empty the log if it is larger than ``keep`` bytes."""
        with self._lock:
            if not self._log.closed and os.fstat(self._log.fileno()).st_size > keep:
                os.ftruncate(self._log.fileno(), 0)

    def read_output(self) -> str:
        """The last lines that the worker printed to stdout or stderr during the task."""
        with self._lock:
            return self._last_output if self._log.closed else self._read_log()

    def _add_statements(self, output: str) -> str:
        """The output with the statements on which stacks stand in files that go with this worker."""

        def add_statement(match: re.Match[str]) -> str:
            with contextlib.suppress(OSError, ValueError, IndexError):
                lines = Path(match[1]).read_text(encoding="utf-8").splitlines()
                return f"{match[0]}\n    {lines[int(match[2]) - 1].strip()[:_OUTPUT_WIDTH]}"
            return match[0]

        place = rf'^  File "({re.escape(str(self._folder))}/[^"]+)", line (\d+) in .*$'
        return re.sub(place, add_statement, output, flags=re.M)

    def _read_log(self) -> str:
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - _OUTPUT_LINES * _OUTPUT_WIDTH)
        text = os.pread(descriptor, _OUTPUT_LINES * _OUTPUT_WIDTH, start).decode(errors="replace")
        return "\n".join(line[:_OUTPUT_WIDTH] for line in text.splitlines()[-_OUTPUT_LINES:])
