"""One slot of the pool: a thread that keeps one worker alive and hands it one task after another."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.run.failures import (
    RemoteTraceback,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerStopped,
    WorkerTimeout,
)
from fuzzcompile.run.reaper import Reaper
from fuzzcompile.run.tasks import Task, TaskQueue
from fuzzcompile.run.worker import LINE_LOST, Call, Payload, Reply, Setup
from fuzzcompile.run.worker_process import WorkerEnded, WorkerProcess

_START_ATTEMPTS = 3
_MAX_DELIVERIES = 3
_STACK_PATIENCE = 0.05  # seconds that a hanging worker has to write its stacks


@dataclass(frozen=True)
class WorkerState:
    """What one slot is doing now. ``task`` is the label of the running task, None if there is none.

    ``doing`` is what the worker last said that it does (:func:`fuzzcompile.run.worker.say`), None if nothing yet.
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
class Terms:
    """The terms of every worker of a pool.

    ``initializer`` is pickled (function, args), or None. ``listener`` is called, by the thread of the slot, with what a
    worker says that it does.
    """

    memory_limit: int | None
    max_tasks: int
    start_limit: float
    initializer: bytes | None
    environment: Mapping[str, str]
    listener: Callable[[WorkerState], object] | None = None


class Slot:
    """Runs tasks on its worker and replaces it; ``check`` and ``kill`` are called by other threads.

    ``_lock`` guards what they share with the slot's own thread: the worker, the running task, and
    ``_lost``, why the worker was killed. That is set before the killing, so that the slot's thread finds
    it when the line closes.
    """

    def __init__(self, index: int, device: str, queue: TaskQueue, terms: Terms, reaper: Reaper) -> None:
        self._index = index
        self._option = self._device = device
        self._queue = queue
        self._terms = terms
        self._reaper = reaper
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._ready = False
        self._task: Task | None = None
        self._doing: str | None = None
        self._since = 0.0  # when the running task, or without one the worker, was started
        self._lost: WorkerFailed | None = None
        self._left: dict[str, str] = {}
        self._stopped = False
        self._served = 0
        self._baseline = 0

    def state(self) -> WorkerState:
        """What the slot is doing now."""
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
            if not self._worker.alive():
                self._worker.kill()  # a child of it may still hold the line open
                self._queue.wake()
            elif not self._ready:
                self._check_start(now)
            elif self._task is not None:
                self._check_task(self._worker, self._task, now)

    def _check_start(self, now: float) -> None:
        if self._queue.finished:
            self._lose(WorkerStopped())
        elif now - self._since > self._terms.start_limit:
            self._lose(WorkerTimeout(self._terms.start_limit))

    def _check_task(self, worker: WorkerProcess, task: Task, now: float) -> None:
        limit, used = self._terms.memory_limit, worker.resident_bytes()
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
            while not self._queue.finished:
                worker = self._ready_worker()
                if worker is None:
                    continue
                task = self._queue.take(give_up=lambda: not worker.alive())  # noqa: B023 - called at once
                if task is not None:
                    self._serve(worker, task)
        finally:
            self._retire_worker(WorkerProcess.stop)

    def _ready_worker(self) -> WorkerProcess | None:
        """The worker, a new one if necessary; None if none can be started: the queue is finished then."""
        if self._worker is not None and self._worker.alive():
            return self._worker
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._retire_worker(WorkerProcess.bury)
            try:
                return self._start_worker()
            except WorkerStartFailed as failure:
                if self._queue.finished:
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
            worker.send(Setup(self._option, self._index, self._terms.initializer))
            reply, payload = self._receive(worker)
        except WorkerEnded as error:
            exit_code = worker.bury()
            reason = f"a worker was lost while it started ({self._lost or WorkerCrashed(exit_code)})"
            raise WorkerStartFailed(reason, worker.output()) from error
        if reply is Reply.START_FAILED:
            assert isinstance(payload, tuple)
            pickled, trace = payload
            assert isinstance(pickled, bytes)
            failure = WorkerStartFailed("the initializer of the workers failed", trace, final=True)
            raise failure from _unpickled(pickled)
        self._baseline = worker.resident_bytes()
        with self._lock:
            self._ready, self._device = True, str(payload)
        return worker

    def _receive(self, worker: WorkerProcess) -> tuple[Reply, Payload]:
        """The next reply but for those that say what the worker does or leaves, which are noted; raises WorkerEnded."""
        while True:
            reply, payload = worker.receive()
            if reply is Reply.DOING:
                with self._lock:
                    self._doing = str(payload)
                if self._terms.listener is not None:
                    self._terms.listener(self.state())
            elif reply is Reply.LEFT:
                self._keep(payload)
            else:
                return reply, payload

    def _keep(self, left: Payload) -> None:
        assert isinstance(left, tuple)
        name, text = str(left[0]), left[1]
        self._left[name] = text
        if self._task is not None and self._task.on_left is not None:
            self._task.on_left(name, text)

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
            worker.send(Call(task.call, _main_module() if b"__main__" in task.call else None))
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
        if task.spends or self._worn_out(worker):
            self._retire_worker(WorkerProcess.stop)

    def _settle_lost(self, worker: WorkerProcess, task: Task, begun: bool) -> None:
        """Fail the task of a lost worker, or requeue it if the worker was dead before the task began."""
        deaf = self._lost is None and worker.lives_without_line()
        self._retire_worker(WorkerProcess.bury)
        with self._lock:
            self._task = None
            exit_code = worker.bury()
            deaf = deaf or exit_code == LINE_LOST
            failure = self._lost or WorkerCrashed(None if deaf else exit_code)
        failure.output, failure.left = worker.output(), self._left
        to_blame = begun or isinstance(failure, WorkerTimeout | WorkerStopped)
        if to_blame or task.deliveries >= _MAX_DELIVERIES:
            task.fail(failure)
        else:
            self._queue.put_back(replace(task, deliveries=task.deliveries + 1))

    def _worn_out(self, worker: WorkerProcess) -> bool:
        """Whether the worker has run its number of tasks, or holds so much memory that the next task would suffer."""
        if 0 < self._terms.max_tasks <= self._served:
            return True
        limit = self._terms.memory_limit
        return limit is not None and worker.resident_bytes() > (self._baseline + limit) / 2


def _deliver(task: Task, reply: Reply, payload: Payload) -> None:
    try:
        if reply is Reply.RAISED:
            assert isinstance(payload, tuple)
            pickled, trace = payload
            assert isinstance(pickled, bytes)
            error = pickle.loads(pickled)
            error.__cause__ = RemoteTraceback(trace)
            task.fail(error)
            return
        assert isinstance(payload, bytes)
        result = pickle.loads(payload)
    except Exception as error:  # unpickling runs the task's own classes, which may raise anything
        task.fail(error)
        return
    task.future.set_result(result)


def _unpickled(error: bytes) -> BaseException | None:
    try:
        loaded = pickle.loads(error)
    except Exception:  # unpickling runs the exception's own class, which may raise anything
        return None
    return loaded if isinstance(loaded, BaseException) else None


def _main_module() -> dict[str, str]:
    """How a worker finds the ``__main__`` of this process, as multiprocessing.spawn expects it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": str(Path(path).resolve())}
