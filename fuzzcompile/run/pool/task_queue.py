"""The tasks that wait for a worker."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from fuzzcompile.run.pool.worker import WorkerFailed, WorkerStopped


@dataclass(frozen=True)
class Task:
    """A call that waits for a worker; ``call`` is pickled (function, args, kwargs).

    ``deliveries`` counts the workers that died before they began the call; ``spends`` says that its worker must not
    run another task afterwards, ``counts`` that it is one of those after which a worker is replaced. ``on_left`` is
    called with each (name, text) that the worker leaves (:func:`fuzzcompile.run.pool.worker.leave`).
    """

    future: Future[Any]
    call: bytes
    label: str
    time_limit: float | None
    spends: bool = False
    counts: bool = True
    deliveries: int = 0
    on_left: Callable[[str, str], object] | None = None

    def fail(self, failure: Exception) -> None:
        """Settle the future with this failure, unless it was cancelled."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(failure)


class TaskQueue:
    """A thread-safe queue, first in, first out, until it is closed. The future of a task that leaves it is running."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._closed = False
        self._broken: WorkerFailed | None = None

    def put(self, task: Task) -> None:
        """Raises RuntimeError when closed, and the pool's failure when broken."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(task)
            self._changed.notify()

    def put_back(self, task: Task) -> None:
        """Put a task that could not begin in front of the rest, whether the queue is closed or not."""
        with self._changed:
            if self._broken is None:
                self._waiting.appendleft(task)
                self._changed.notify()
                return
        task.fail(self._broken)

    def take(self, give_up: Callable[[], bool]) -> Task | None:
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

    def close(self, *, cancel: bool) -> None:
        """Accept no more tasks; with ``cancel``, cancel those that wait."""
        for task in self._close(drop=cancel):
            if task.future.cancel():
                task.future.set_running_or_notify_cancel()  # wakes concurrent.futures.wait
            else:  # a worker has taken it before
                task.fail(WorkerStopped())

    def break_with(self, failure: WorkerFailed) -> None:
        """Close for good: every waiting task, and each later ``put``, fails with this."""
        self._broken = failure
        for task in self._close(drop=True):
            task.fail(failure)

    def _close(self, *, drop: bool) -> list[Task]:
        with self._changed:
            self._closed = True
            dropped = list(self._waiting) if drop else []
            if drop:
                self._waiting.clear()
            self._changed.notify_all()
        return dropped

    @property
    def is_finished(self) -> bool:
        """Return whether no task will ever leave the queue again."""
        with self._changed:
            return self._closed and not self._waiting
