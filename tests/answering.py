"""A pool whose tasks a test answers itself, in its `submit`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from fuzzcompile.run.pool.worker_pool import Call, TaskOptions, TaskPool, WorkerState


class AnsweringPool(TaskPool):
    """Has no worker."""

    capacity = 1

    def put(self, call: Call, label: str, options: TaskOptions) -> Future[Any]:
        function, args, _ = call
        return self.submit(function, *args)

    def workers(self) -> list[WorkerState]:
        return []

    def kill_workers(self) -> None: ...
