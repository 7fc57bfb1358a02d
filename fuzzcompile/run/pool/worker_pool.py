"""Worker processes that persist, as a ``concurrent.futures.Executor``, each with limits.

A crash, a hang or too much memory fails the task that caused it and nothing else. Built on subprocess rather than on
pebble, whose ProcessPool (5.2) never settles a task that calls ``os._exit(0)``, stays broken once its only idle worker
is killed, and does not kill grandchildren.
"""

from __future__ import annotations

import pickle
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from fuzzcompile.run.pool.reaper import Reaper
from fuzzcompile.run.pool.task_queue import Task, TaskQueue
from fuzzcompile.run.pool.worker import is_importing_main
from fuzzcompile.run.pool.worker_slot import WorkerSlot, WorkerState, WorkerTerms

P = ParamSpec("P")
T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """How a pool runs a task."""

    label: str | None  # the name of the task in ``workers()``; that of the function by default
    time_limit: float | None  # seconds (None: the pool's limit, ``math.inf``: none)
    spends: bool  # replace the worker after the task, so that the task's effects on its process end with it
    counts: bool  # whether it is one of the ``max_tasks`` of its worker (true by default): a light one is not
    # Called with the name and the text of what the worker leaves of the task (`fuzzcompile.run.pool.worker.leave`), by
    # a thread of the pool; must not raise.
    on_left: Callable[[str, str], object] | None
    # Machines (`fuzzcompile.run.device.identify_machine`) on which not to run it while the pool has others.
    not_on: Collection[str]


class TaskPool(Executor):
    """Runs tasks in processes, here or on a cluster, that a task may take down: its future fails with WorkerFailed."""

    @abstractmethod
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


_WATCH_INTERVAL = 0.05


class WorkerPool(TaskPool):
    """Runs tasks in worker processes, which start at once and are replaced when they are lost.

    A lost worker fails its task's future with a WorkerFailed. Workers print to a log of their own, never to this
    process's stdout, and end, with their children, when this process does.

    Args:
        workers: how many processes.
        time_limit: seconds that a task may take from when a ready worker receives it; checked every 50 ms.
        memory_limit: bytes of resident memory that a worker may use without its children; checked every 50 ms.
        max_tasks: number of tasks after which a worker is replaced (0: never).
        initializer: called with ``initargs`` in each worker before its first task.
        initargs: arguments of ``initializer``.
        devices: worker i gets ``devices[i % len(devices)]``, which a task reads with ``current_device()``.
        start_limit: seconds that the start of a worker with its initializer may take.
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
        devices: Sequence[str] | None = None,
        start_limit: float = 300.0,
        environment: Mapping[str, str] | None = None,
        listener: Callable[[WorkerState], object] | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError("a pool needs at least one worker")
        if is_importing_main():
            raise RuntimeError('guard the script\'s own work with `if __name__ == "__main__":`')
        setup = None if initializer is None else pickle.dumps((initializer, initargs))
        terms = WorkerTerms(memory_limit, max_tasks, start_limit, setup, dict(environment or {}), listener)
        devices = devices or ("cpu",)
        self._time_limit = time_limit
        self._queue = TaskQueue()
        self._reaper = Reaper()
        self._slots = [
            WorkerSlot(index, devices[index % len(devices)], self._queue, terms, self._reaper)
            for index in range(workers)
        ]
        self._threads = [
            threading.Thread(target=slot.run, name=f"worker-slot-{index}", daemon=True)
            for index, slot in enumerate(self._slots)
        ]
        self._watchdog = threading.Thread(target=self._watch, name="worker-watchdog", daemon=True)
        for thread in [*self._threads, self._watchdog]:
            thread.start()

    def schedule(
        self,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` (`TaskPool.schedule`)."""
        future: Future[T] = Future()
        try:
            call = pickle.dumps((fn, tuple(args), dict(kwargs or {})), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickling runs the arguments' own code, which may raise anything
            future.set_exception(error)
            return future
        limit, on_left = options.get("time_limit"), options.get("on_left")
        name = options.get("label") or str(getattr(fn, "__qualname__", fn))
        how = (self._time_limit if limit is None else limit, options.get("spends", False), options.get("counts", True))
        self._queue.put(Task(future, call, name, *how, on_left=on_left))
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
        self._queue.close(cancel=cancel_futures)
        if wait:
            self._join()

    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped."""
        self._queue.close(cancel=True)
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
        for thread in [*self._threads, self._watchdog]:
            if thread is not threading.current_thread():  # a future's callback may shut the pool down
                thread.join()

    def _watch(self) -> None:
        while any(thread.is_alive() for thread in self._threads):
            now = time.monotonic()
            for slot in self._slots:
                slot.check(now)
            time.sleep(_WATCH_INTERVAL)
        self._reaper.close()
