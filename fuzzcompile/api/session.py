"""The worker that judges the calls of this process: started at the first one, kept for the rest."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.execution.pool import WorkerPool
from fuzzcompile.execution.reachable import is_user_file
from fuzzcompile.worker.conditions import Conditions
from fuzzcompile.worker.pool import LEAST_THREADS, open_pool

_Key = tuple[Conditions, tuple[str, ...]]


class Session:
    """One pool of one worker, replaced when the conditions under which it was started have changed."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._key: _Key | None = None
        self._process = os.getpid()
        self._modules: dict[str, float] = {}

    def pool(self, conditions: Conditions) -> WorkerPool:
        """The pool for calls under ``conditions``.

        A worker that has imported a module of the user's would not see a change of its file.

        Raises:
            EnvironmentUnfit: there is no such device.
        """
        key, modules = (conditions, tuple(map(str, sys.path))), dict(_user_modules())
        changed = any(self._modules.get(path, time) != time for path, time in modules.items())
        if self._pool is None or key != self._key or changed or self._process != os.getpid():
            self.close()
            self._pool, self._key, self._process = (
                open_pool(conditions, 1, least_threads=LEAST_THREADS),
                key,
                os.getpid(),
            )
        self._modules = modules
        return self._pool

    def close(self) -> None:
        """End the worker; the next call starts another. A fork of the process leaves its parent's worker alone."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.kill_workers()
        self._pool = None


session = Session()
"""The session of this process."""
atexit.register(lambda: session.close())


def _user_modules() -> Iterator[tuple[str, float]]:
    """The files of the user's modules, with the time of their last change."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_user_file(file) and Path(file).exists():
            yield file, Path(file).stat().st_mtime
