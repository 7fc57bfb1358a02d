"""One slot of the pool: a thread that keeps one worker alive and hands it one task after another."""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from fuzzcompile.run.pool.reaper import (
    MARK_VARIABLE,
    Reaper,
    end_processes,
    end_tree,
    get_worker_folder,
    list_descendants,
)
from fuzzcompile.run.pool.task_queue import Task, TaskQueue
from fuzzcompile.run.pool.worker import (
    DUMP_STACKS,
    LINE_LOST,
    CallMessage,
    Payload,
    RemoteTraceback,
    StartMessage,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerReply,
    WorkerStartFailed,
    WorkerStopped,
    WorkerTimeout,
)

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    "from fuzzcompile.run.pool.worker import main; main(int(sys.argv[1]))"
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
    """The pool's side of one worker process. One thread talks to it; any thread may inspect it and kill it.

    ``reaper`` ends the worker when this process is gone; ``environment`` are variables beside those of this process.
    """

    def __init__(self, reaper: Reaper, environment: Mapping[str, str]) -> None:
        self._reaper = reaper
        self._mark = uuid.uuid4().hex
        self._folder = get_worker_folder(self._mark)
        self._log = _open_append_only_file()
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
        below = list_descendants(self.pid) if self.is_alive() else {}
        with contextlib.suppress(WorkerEnded):
            self._send_bytes(b"")
        self._wait(_STOP_PATIENCE)
        self.release()
        end_processes(below)  # children without the worker's mark, of a worker that exited by itself

    def lives_without_line(self) -> bool:
        """Return whether it still runs although its end of the pipe is closed; an ending worker gets a second."""
        return self._wait(_END_PATIENCE)

    def _wait(self, seconds: float) -> bool:
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

    def clear_log(self) -> None:
        """Empty the log for the next task."""
        with self._lock:
            if not self._log.closed:
                os.ftruncate(self._log.fileno(), 0)

    def log_overflows(self) -> bool:
        """Return whether the task has printed so much that the disk might fill up."""
        with self._lock:
            return not self._log.closed and os.fstat(self._log.fileno()).st_size > _LOG_LIMIT

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


def _open_append_only_file() -> IO[bytes]:
    """A file without a name, gone with its last user, that can be truncated while another process writes to it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as its worker
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)
    return file


_START_ATTEMPTS = 3
_MAX_DELIVERIES = 3
_STACK_PATIENCE = 0.05  # seconds that a hanging worker has to write its stacks


@dataclass(frozen=True)
class WorkerState:
    """Current state of one slot. ``task`` is the label of the running task, None if there is none.

    ``doing`` is what the worker last said that it does (:func:`fuzzcompile.run.pool.worker.say`), None if nothing yet.
    ``busy_since`` is a reading of ``time.monotonic()``, None without a task. ``ready`` is False while a worker starts
    and runs its initializer; ``pid`` is None between two workers.
    """

    slot: int
    pid: int | None
    device: str
    ready: bool
    task: str | None
    busy_since: float | None
    doing: str | None = None


@dataclass(frozen=True)
class WorkerTerms:
    """The terms of every worker of a pool (see :class:`~fuzzcompile.run.pool.worker_pool.WorkerPool`).

    ``initializer`` is pickled (function, args), or None. ``listener`` is called by the thread of the slot.
    """

    memory_limit: int | None
    max_tasks: int
    start_limit: float
    initializer: bytes | None
    environment: Mapping[str, str]
    listener: Callable[[WorkerState], object] | None = None


class WorkerSlot:
    """Runs tasks on its worker and replaces it; ``check`` and ``kill`` are called by other threads.

    ``_lock`` guards what they share with the slot's own thread: the worker, the running task, and
    ``_lost``, why the worker was killed. That is set before the killing, so that the slot's thread finds
    it when the line closes.
    """

    def __init__(self, index: int, device: str, queue: TaskQueue, terms: WorkerTerms, reaper: Reaper) -> None:
        self._index = index
        self._option = self._device = device
        self._queue, self._terms, self._reaper = queue, terms, reaper
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._ready = self._stopped = False
        self._task: Task | None = None
        self._doing: str | None = None
        self._since = 0.0  # when the running task, or without one the worker, was started
        self._lost: WorkerFailed | None = None
        self._left: dict[str, str] = {}
        self._served = self._baseline = 0

    def get_state(self) -> WorkerState:
        """Return the current state of the slot."""
        with self._lock:
            return WorkerState(
                slot=self._index,
                pid=self._worker.pid if self._worker else None,
                device=self._device,
                ready=self._ready,
                task=self._task.label if self._task else None,
                busy_since=self._since if self._task else None,
                doing=self._doing,
            )

    def kill(self) -> None:
        """End the worker now and start no new one; a running task fails with WorkerStopped."""
        with self._lock:
            self._stopped = True
            self._lose(WorkerStopped())

    # The watchdog's thread.

    def check(self, now: float) -> None:
        """Kill the worker if it exceeded a limit; wake the slot's thread if it died by itself."""
        with self._lock:
            if self._worker is None or self._lost is not None:
                return
            if not self._worker.is_alive():
                self._worker.kill()  # a child of it may still hold the line open
                self._queue.wake()
            elif self._ready and self._task is not None:
                self._check_task(self._worker, self._task, now)
            elif not self._ready and self._queue.is_finished:
                self._lose(WorkerStopped())
            elif not self._ready and now - self._since > self._terms.start_limit:
                self._lose(WorkerTimeout(self._terms.start_limit))

    def _check_task(self, worker: WorkerProcess, task: Task, now: float) -> None:
        limit, used = self._terms.memory_limit, worker.measure_resident_bytes()
        if limit is not None and used > limit:
            self._lose(WorkerOutOfMemory(limit, used))
        elif task.time_limit is not None and now - self._since > task.time_limit:
            # Recorded first: the signal may interrupt the hang, and the task may then return a result.
            self._lost = WorkerTimeout(task.time_limit)
            worker.dump_stacks()
            time.sleep(_STACK_PATIENCE)
            worker.kill()
        elif worker.log_overflows():
            worker.clear_log()

    def _lose(self, reason: WorkerFailed) -> None:
        self._lost = self._lost or reason
        if self._worker is not None:
            self._worker.kill()

    # The slot's own thread.

    def run(self) -> None:
        """Serve the queue until it is finished."""
        try:
            while not self._queue.is_finished:
                worker = self._prepare_worker()
                if worker is None:
                    continue
                task = self._queue.take(give_up=lambda: not worker.is_alive())  # noqa: B023 - called at once
                if task is not None:
                    self._serve(worker, task)
        finally:
            self._retire_worker(WorkerProcess.stop)

    def _prepare_worker(self) -> WorkerProcess | None:
        """The worker, a new one if necessary; None if none can be started: the queue is finished then."""
        if self._worker is not None and self._worker.is_alive():
            return self._worker
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._retire_worker(WorkerProcess.release)
            try:
                return self._start_worker()
            except WorkerStartFailed as failure:
                if self._queue.is_finished:
                    break
                if attempt == _START_ATTEMPTS or failure.final:
                    self._queue.break_with(failure)
                    break
        return None

    def _start_worker(self) -> WorkerProcess:
        """Start a worker and wait for its initializer; raises WorkerStartFailed."""
        try:
            worker = WorkerProcess(self._reaper, self._terms.environment)
        except OSError as error:
            raise WorkerStartFailed(f"no worker process could be started ({error})") from error
        with self._lock:
            self._worker, self._lost, self._served, self._since = worker, None, 0, time.monotonic()
            self._doing = None
            if self._stopped:
                self._lose(WorkerStopped())
        try:
            worker.send(StartMessage(self._option, self._index, self._terms.initializer))
            reply, payload = self._receive(worker)
        except WorkerEnded as error:
            exit_code = worker.release()
            reason = f"a worker was lost while it started ({self._lost or WorkerCrashed(exit_code)})"
            raise WorkerStartFailed(reason, worker.read_output()) from error
        if reply is WorkerReply.START_FAILED:
            raised, trace = _unpickle_error(payload)
            raise WorkerStartFailed("the initializer of the workers failed", trace, final=True) from raised
        self._baseline = worker.measure_resident_bytes()
        with self._lock:
            self._ready, self._device = True, str(payload)
        return worker

    def _receive(self, worker: WorkerProcess) -> tuple[WorkerReply, Payload]:
        """The next reply but for those that say what the worker does or leaves, which are noted; raises WorkerEnded."""
        while True:
            reply, payload = worker.receive()
            if reply is WorkerReply.DOING:
                with self._lock:
                    self._doing = str(payload)
                if self._terms.listener is not None:
                    self._terms.listener(self.get_state())
            elif reply is WorkerReply.LEFT:
                assert isinstance(payload, tuple)
                name, text = str(payload[0]), payload[1]
                self._left[name] = text
                if self._task is not None and self._task.on_left is not None:
                    self._task.on_left(name, text)
            else:
                return reply, payload

    def _retire_worker(self, end: Callable[[WorkerProcess], object]) -> None:
        with self._lock:
            worker, self._worker, self._ready = self._worker, None, False
        if worker is not None:
            end(worker)

    def _serve(self, worker: WorkerProcess, task: Task) -> None:
        worker.clear_log()
        with self._lock:
            self._task, self._since = task, time.monotonic()
        begun, self._left = False, {}
        try:
            worker.send(CallMessage(task.call, _locate_main() if b"__main__" in task.call else None))
            self._receive(worker)  # Reply.STARTED
            begun = True
            reply, payload = self._receive(worker)
        except WorkerEnded:
            self._settle_lost(worker, task, begun)
            return
        with self._lock:
            over_limit = self._lost is not None
            self._task = None
        if over_limit:
            self._settle_lost(worker, task, begun)
            return
        _deliver(task, reply, payload)
        self._served += task.counts
        if task.spends or self._is_worn_out(worker):
            self._retire_worker(WorkerProcess.stop)

    def _settle_lost(self, worker: WorkerProcess, task: Task, begun: bool) -> None:
        """Fail the task of a lost worker, or requeue it if the worker was dead before the task began."""
        deaf = self._lost is None and worker.lives_without_line()
        self._retire_worker(WorkerProcess.release)
        with self._lock:
            self._task = None
            exit_code = worker.release()
            deaf = deaf or exit_code == LINE_LOST
            failure = self._lost or WorkerCrashed(None if deaf else exit_code)
        failure.output, failure.left = worker.read_output(), self._left
        to_blame = begun or isinstance(failure, WorkerTimeout | WorkerStopped)
        if to_blame or task.deliveries >= _MAX_DELIVERIES:
            task.fail(failure)
        else:
            self._queue.put_back(replace(task, deliveries=task.deliveries + 1))

    def _is_worn_out(self, worker: WorkerProcess) -> bool:
        if 0 < self._terms.max_tasks <= self._served:
            return True
        limit = self._terms.memory_limit
        return limit is not None and worker.measure_resident_bytes() > (self._baseline + limit) / 2


def _deliver(task: Task, reply: WorkerReply, payload: Payload) -> None:
    if reply is WorkerReply.RAISED:
        error, trace = _unpickle_error(payload)
        error.__cause__ = RemoteTraceback(trace)
        task.fail(error)
        return
    assert isinstance(payload, bytes)
    try:
        result = pickle.loads(payload)
    except Exception as error:  # unpickling runs the task's own classes, which may raise anything
        task.fail(error)
        return
    task.future.set_result(result)


def _unpickle_error(payload: Payload) -> tuple[Exception, str]:
    assert isinstance(payload, tuple) and isinstance(payload[0], bytes)
    try:
        return pickle.loads(payload[0]), payload[1]
    except Exception as error:  # unpickling runs the exception's own class, which may raise anything
        return error, payload[1]


def _locate_main() -> dict[str, str]:
    """Return the place of this process's ``__main__`` for a worker, as multiprocessing.spawn expects it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": str(Path(path).resolve())}
