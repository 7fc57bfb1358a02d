"""Worker processes that persist, as a ``concurrent.futures.Executor``, each with limits.

A crash, a hang or too much memory fails the task that caused it and nothing else. Built on subprocess rather than on
pebble, whose ProcessPool (5.2) never settles a task that calls ``os._exit(0)``, stays broken once its only idle worker
is killed, and does not kill grandchildren.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, cast

import psutil

from fuzzcompile.run.pool.reaper import Reaper
from fuzzcompile.run.pool.worker import (
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
    is_importing_main,
)
from fuzzcompile.run.pool.worker_process import LOG_LIMIT, WorkerEnded, WorkerProcess

P = ParamSpec("P")
T = TypeVar("T")
#: A function, its positional arguments and those by keyword.
Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...], dict[str, object]]

_START_ATTEMPTS = 3
_MAX_DELIVERIES = 3
_WATCH_INTERVAL = 0.05


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


class TaskOptions(TypedDict, total=False):
    """How a pool runs a task."""

    label: str | None  # the name of the task in ``workers()``; that of the function by default
    time_limit: float | None  # seconds (None: the pool's limit, ``math.inf``: none)
    spends: bool  # replace the worker after the task, so that the task's effects on its process end with it
    anew: bool  # run it in a worker that no task has run in
    counts: bool  # whether it is one of the ``max_tasks`` of its worker (true by default): a light one is not
    # Called with the name and the text of what the worker leaves of the task (`fuzzcompile.run.pool.worker.leave`), by
    # a thread of the pool; must not raise.
    on_left: Callable[[str, str], object] | None
    # Machines (`fuzzcompile.run.device.identify_machine`) on which not to run it while the pool has others.
    not_on: Collection[str]


class TaskPool(Executor):
    """Runs tasks in processes, here or on a cluster, that a task may take down: its future fails with WorkerFailed."""

    def schedule(
        self,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Future[T]:
        """Run ``fn(*args, **kwargs)``; a call that cannot be pickled fails its future.

        Raises:
            RuntimeError: the pool is shut down.
            WorkerStartFailed: no worker can be started any more.
        """
        label = options.pop("label", None) or str(getattr(fn, "__qualname__", fn))
        return cast(Future[T], self.put((fn, tuple(args), dict(kwargs or {})), label, options))

    @abstractmethod
    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        """Run a call: what `schedule` does once the call has its label, which ``options`` leaves out."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The number of tasks to have submitted at once for every worker to be busy; it may change."""

    @abstractmethod
    def workers(self) -> list[WorkerState]:
        """Return the current state of each worker."""

    @abstractmethod
    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped."""

    def environment_of(self, future: Future[Any]) -> Mapping[str, object] | None:
        """Return the environment of the result of a task that has ended, where workers run in several environments."""
        del future
        return None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` under the pool's time limit."""
        return self.schedule(fn, args, kwargs)


class WorkerPool(TaskPool):
    """Runs tasks in worker processes, which start at once and are replaced when they are lost.

    A lost worker fails its task's future with a WorkerFailed. Workers print to a log of their own, never to this
    process's stdout, and end, with their children, when this process does.

    Args:
        workers: how many processes.
        time_limit: seconds that a task may take from when a ready worker receives it; checked every 50 ms.
        memory_limit: bytes of resident memory that a worker may use without its children; checked every 50 ms.
        max_tasks: number of tasks after which a worker is replaced (0: never).
        initializer: called with ``initargs`` in each worker before its first task, within ``start_limit`` seconds.
        devices: worker i gets ``devices[i % len(devices)]``, which a task reads with ``get_current_device()``.
        environment: variables that workers have besides those of this process.
        listener: called with the state of a worker when it says what it does, by a thread of the pool; must not raise.

    Raises:
        ValueError: ``workers`` is less than 1.
        RuntimeError: a worker imports a script that opens a pool without ``if __name__ == "__main__":``.
    """

    def __init__(
        self,
        workers: int,
        *,
        time_limit: float | None = None,
        memory_limit: int | None = None,
        max_tasks: int = 0,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[object, ...] = (),
        devices: Sequence[str] = ("cpu",),
        start_limit: float = 300.0,
        environment: Mapping[str, str] | None = None,
        listener: Callable[[WorkerState], object] | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError("a pool needs at least one worker")
        if is_importing_main():
            raise RuntimeError('guard the script\'s own work with `if __name__ == "__main__":`')
        self.initializer = None if initializer is None else pickle.dumps((initializer, initargs))
        self.time_limit, self.memory_limit, self.max_tasks = time_limit, memory_limit, max_tasks
        self.start_limit, self.environment, self.listener = start_limit, dict(environment or {}), listener
        self.queue, self.reaper = _TaskQueue(), Reaper()
        self._slots = [_Slot(self, index, devices[index % len(devices)]) for index in range(workers)]
        self._watchdog = threading.Thread(target=self._watch, name="worker-watchdog", daemon=True)
        for thread in [*self._slots, self._watchdog]:
            thread.start()

    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        """Have the next free worker run a call (`TaskPool.put`)."""
        future: Future[Any] = Future()
        try:
            pickled = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickling runs the arguments' own code, which may raise anything
            future.set_exception(error)
            return future
        limit = options.get("time_limit")
        self.queue.put(_Task(future, pickled, label, self.time_limit if limit is None else limit, options))
        return future

    @property
    def capacity(self) -> int:
        """The number of workers."""
        return len(self._slots)

    def workers(self) -> list[WorkerState]:
        """Return the current state of each slot."""
        return [slot.get_state() for slot in self._slots]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks and let the workers exit when the submitted ones are done."""
        self.queue.close(WorkerStopped() if cancel_futures else None)
        if wait:
            self._join()

    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped."""
        self.queue.close(WorkerStopped())
        for slot in self._slots:
            slot.kill()
        self._join()

    def __exit__(self, exc_type: type[BaseException] | None, *error: object) -> None:
        """Wait for the tasks, unless an exception (Ctrl-C, for one) ends the block: then kill the workers."""
        if exc_type is None:
            self.shutdown()
        else:
            self.kill_workers()

    def _join(self) -> None:
        for thread in [*self._slots, self._watchdog]:
            if thread is not threading.current_thread():  # a future's callback may shut the pool down
                thread.join()

    def _watch(self) -> None:
        while any(slot.is_alive() for slot in self._slots):
            now = time.monotonic()
            for slot in self._slots:
                slot.check(now)
            time.sleep(_WATCH_INTERVAL)
        self.reaper.close()


@dataclass
class _Task:
    """A pickled call that waits for a worker; ``deliveries`` counts the workers that died before they began it."""

    future: Future[Any]
    call: bytes
    label: str
    time_limit: float | None
    options: TaskOptions
    deliveries: int = 0

    def fail(self, failure: Exception) -> None:
        """Settle the future with this failure, unless it was cancelled."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(failure)


class _TaskQueue:
    """A thread-safe queue, first in, first out, until it is closed. The future of a task that leaves it is running."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._closed = False
        self._broken: WorkerStartFailed | None = None

    def put(self, task: _Task) -> None:
        """Raises RuntimeError when closed, and the pool's failure when broken."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(task)
            self._changed.notify()

    def put_back(self, task: _Task) -> None:
        """Put a task that could not begin in front of the rest, whether the queue is closed or not."""
        with self._changed:
            if self._broken is None:
                self._waiting.appendleft(task)
                self._changed.notify()
                return
        task.fail(self._broken)

    def take(self, give_up: Callable[[], bool]) -> _Task | None:
        """Wait for a task and mark it running; None if the queue is closed and empty, or ``give_up()`` is true.

        ``give_up`` is called again after each ``wake``.
        """
        with self._changed:
            while not give_up():
                while self._waiting:
                    task = self._waiting.popleft()
                    if task.future.running() or task.future.set_running_or_notify_cancel():
                        return task
                if self._closed:
                    return None
                self._changed.wait()
        return None

    def wake(self) -> None:
        """Have every waiting ``take`` check its conditions again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, reason: WorkerFailed | None) -> None:
        """Accept no more tasks, for a ``reason`` drop those that wait: cancelled if stopped, failed if broken."""
        with self._changed:
            self._closed = True
            dropped = [] if reason is None else list(self._waiting)
            if reason is not None:
                self._waiting.clear()
            if isinstance(reason, WorkerStartFailed):
                self._broken = reason
            self._changed.notify_all()
        for task in dropped:
            if isinstance(reason, WorkerStopped) and task.future.cancel():
                task.future.set_running_or_notify_cancel()  # wakes concurrent.futures.wait
            elif reason is not None:  # broken, or a worker has taken it before
                task.fail(reason)

    @property
    def is_finished(self) -> bool:
        """Return whether no task will ever leave the queue again."""
        with self._changed:
            return self._closed and not self._waiting


class _Slot(threading.Thread):
    """Runs tasks on its worker and replaces it; ``check`` and ``kill`` are called by other threads.

    ``_lock`` guards what they share with this thread: the worker, the running task, and ``_lost``, why the worker was
    killed. That is set before the killing, so that this thread finds it when the line closes.
    """

    def __init__(self, pool: WorkerPool, index: int, device: str) -> None:
        super().__init__(name=f"worker-slot-{index}", daemon=True)
        self._pool, self._queue, self._index = pool, pool.queue, index
        self._option = self._device = device
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._ready = self._killed = False
        self._task: _Task | None = None
        self._doing: str | None = None
        self._since = 0.0  # when the running task, or without one the worker, was started
        self._lost: WorkerFailed | None = None
        self._left: dict[str, str] = {}
        self._served = self._baseline = 0

    def get_state(self) -> WorkerState:
        """Return the current state of the slot."""
        with self._lock:
            pid = self._worker.pid if self._worker else None
            task, since = (self._task.label, self._since) if self._task else (None, None)
            return WorkerState(self._index, pid, self._device, self._ready, task, since, self._doing)

    def kill(self) -> None:
        """End the worker now and start no new one; a running task fails with WorkerStopped."""
        with self._lock:
            self._killed = True
            self._lose(WorkerStopped())

    def check(self, now: float) -> None:
        """Kill the worker if it exceeded a limit; wake this thread if it died by itself."""
        with self._lock:
            worker, task, limit = self._worker, self._task, self._pool.memory_limit
            if worker is None or self._lost is not None:
                return
            if not worker.is_alive():
                worker.kill()  # a child of it may still hold the line open
                self._queue.wake()
            elif not self._ready and self._queue.is_finished:
                self._lose(WorkerStopped())
            elif not self._ready and now - self._since > self._pool.start_limit:
                self._lose(WorkerTimeout(self._pool.start_limit))
            elif self._ready and task is not None:
                if limit is not None and (used := worker.measure_resident_bytes()) > limit:
                    self._lose(WorkerOutOfMemory(limit, used))
                elif task.time_limit is not None and now - self._since > task.time_limit:
                    # The signal that shows the stacks may interrupt the hang, and the task then return a result.
                    load = psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
                    self._lose(WorkerTimeout(task.time_limit, load=load), shows_stacks=True)
                else:
                    worker.clear_log(keep=LOG_LIMIT)

    def _lose(self, reason: WorkerFailed, *, shows_stacks: bool = False) -> None:
        self._lost = self._lost or reason
        if self._worker is not None:
            self._worker.kill(shows_stacks=shows_stacks)

    # In this thread.

    def run(self) -> None:
        """Serve the queue until it is finished."""
        try:
            while not self._queue.is_finished:
                worker = self._prepare_worker()
                if worker is None:
                    continue
                task = self._queue.take(give_up=lambda: not worker.is_alive())  # noqa: B023 - called at once
                if task is None:
                    continue
                own = self._replace_worker() if task.options.get("anew") and self._served else worker
                if own is not None:
                    self._serve(own, task)
                elif self._killed:
                    task.fail(WorkerStopped())
                else:
                    self._queue.put_back(task)
        finally:
            self._retire_worker(WorkerProcess.stop)

    def _replace_worker(self) -> WorkerProcess | None:
        self._retire_worker(WorkerProcess.stop)
        return self._prepare_worker()

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
                    self._queue.close(failure)
                    break
        return None

    def _start_worker(self) -> WorkerProcess:
        """Start a worker and wait for its initializer; raises WorkerStartFailed."""
        try:
            worker = WorkerProcess(self._pool.reaper, self._pool.environment)
        except OSError as error:
            raise WorkerStartFailed(f"no worker process could be started ({error})") from error
        with self._lock:
            self._worker, self._lost, self._served, self._since = worker, None, 0, time.monotonic()
            self._doing = None
            if self._killed:
                self._lose(WorkerStopped())
        try:
            worker.send(StartMessage(self._option, self._index, self._pool.initializer))
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
                if self._pool.listener is not None:
                    self._pool.listener(self.get_state())
            elif reply is WorkerReply.LEFT:
                assert isinstance(payload, tuple)
                name, text = str(payload[0]), payload[1]
                self._left[name] = text
                on_left = self._task.options.get("on_left") if self._task is not None else None
                if on_left is not None:
                    on_left(name, text)
            else:
                return reply, payload

    def _retire_worker(self, end: Callable[[WorkerProcess], object]) -> None:
        with self._lock:
            worker, self._worker, self._ready = self._worker, None, False
        if worker is not None:
            end(worker)

    def _serve(self, worker: WorkerProcess, task: _Task) -> None:
        worker.clear_log()
        with self._lock:
            self._task, self._since = task, time.monotonic()
        begun, self._left = False, {}
        answer: tuple[WorkerReply, Payload] | None = None
        try:
            worker.send(CallMessage(task.call, _locate_main() if b"__main__" in task.call else None))
            self._receive(worker)  # Reply.STARTED
            begun = True
            answer = self._receive(worker)
        except WorkerEnded:
            pass
        else:
            with self._lock:
                self._task = None
        if answer is None or self._lost is not None:  # an answer that came after its time does not count
            self._settle_lost(worker, task, begun)
            return
        _deliver(task, *answer)
        self._served += task.options.get("counts", True)
        if task.options.get("spends") or self._is_worn_out(worker):
            self._retire_worker(WorkerProcess.stop)

    def _settle_lost(self, worker: WorkerProcess, task: _Task, begun: bool) -> None:
        """Fail the task of a lost worker, or requeue it if the worker was dead before the task began."""
        deaf = self._lost is None and worker.lives_on()
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
            task.deliveries += 1
            self._queue.put_back(task)

    def _is_worn_out(self, worker: WorkerProcess) -> bool:
        if 0 < self._pool.max_tasks <= self._served:
            return True
        limit = self._pool.memory_limit
        return limit is not None and worker.measure_resident_bytes() > (self._baseline + limit) / 2


def _deliver(task: _Task, reply: WorkerReply, payload: Payload) -> None:
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
