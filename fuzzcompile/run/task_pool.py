"""What campaigns ask of the workers that run their tasks, be they processes of this machine or of a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from fuzzcompile.run.slot import WorkerState

P = ParamSpec("P")
T = TypeVar("T")


class TaskPool(Executor):
    """Runs tasks in processes that a task may take down: its future then fails with a WorkerFailed."""

    @abstractmethod
    def schedule(
        self,
        fn: Callable[..., T],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        label: str | None = None,
        time_limit: float | None = None,
        spends: bool = False,
        counts: bool = True,
        on_left: Callable[[str, str], object] | None = None,
        not_on: Collection[str] = (),
    ) -> Future[T]:
        """Run ``fn(*args, **kwargs)``; a call that cannot be pickled fails its future.

        Args:
            fn: a function that can be pickled.
            args: its positional arguments.
            kwargs: its keyword arguments.
            label: the name of the task in ``workers()``; that of the function by default.
            time_limit: seconds (None: the pool's limit, ``math.inf``: none).
            spends: replace the worker after the task, so that the task's effects on its process end with it.
            counts: whether it is one of the ``max_tasks`` of its worker: a light task that leaves nothing is not.
            on_left: called with the name and the text of what the worker leaves of the task
                (:func:`fuzzcompile.run.worker.leave`), by a thread of the pool; must not raise.
            not_on: machines (:func:`fuzzcompile.run.environment.machine`) on which not to run it while the pool
                has others.

        Raises:
            RuntimeError: the pool is shut down.
            WorkerStartFailed: no worker can be started any more.
        """

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many tasks to have submitted at once, for every worker to be busy; it may change."""

    @abstractmethod
    def workers(self) -> list[WorkerState]:
        """What each worker is doing now."""

    @abstractmethod
    def kill_workers(self) -> None:
        """Stop now: waiting tasks are cancelled, running ones fail with WorkerStopped."""

    def environment_of(self, future: Future[Any]) -> Mapping[str, object] | None:
        """What the result of a task that has ended depends on, where workers run in several environments."""
        del future
        return None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` under the pool's time limit."""
        return self.schedule(fn, args, kwargs)
