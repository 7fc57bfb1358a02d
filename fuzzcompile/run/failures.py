"""How a task can fail other than by raising: the worker process that ran it was lost.

Each of these exceptions is set on the task's future, can be pickled, and says in one line what happened. ``output``
holds the last lines that the worker printed during the task, including a segfault's Python stack.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType


class WorkerFailed(Exception):
    """The worker was lost while it ran the task; the pool has replaced it.

    ``left`` is what the worker left of the task until then (:func:`fuzzcompile.run.worker.leave`).
    """

    output = ""
    left: Mapping[str, str] = MappingProxyType({})


class WorkerTimeout(WorkerFailed):
    """The task ran for longer than its limit, in seconds; ``output`` ends with the stack in which it hung."""

    def __init__(self, seconds: float, output: str = "") -> None:
        super().__init__(seconds, output)
        self.seconds = seconds
        self.output = output

    def __str__(self) -> str:
        return f"still running after {self.seconds:g} s"


class WorkerOutOfMemory(WorkerFailed):
    """The worker's resident memory exceeded its limit; both in bytes."""

    def __init__(self, limit: int, seen: int, output: str = "") -> None:
        super().__init__(limit, seen, output)
        self.limit = limit
        self.seen = seen
        self.output = output

    def __str__(self) -> str:
        return f"used {self.seen / 2**20:.0f} MiB of memory, the limit is {self.limit / 2**20:.0f} MiB"


class WorkerCrashed(WorkerFailed):
    """The worker process ended in the middle of the task.

    ``exit_code`` is negative for a signal, as in subprocess, and None if it is not known.
    """

    def __init__(self, exit_code: int | None, output: str = "") -> None:
        super().__init__(exit_code, output)
        self.exit_code = exit_code
        self.output = output

    @property
    def signal_name(self) -> str | None:
        """``"SIGSEGV"`` and the like; None if the worker exited by itself."""
        if self.exit_code is None or self.exit_code >= 0:
            return None
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"

    def __str__(self) -> str:
        if self.signal_name is not None:
            return f"the worker was ended by {self.signal_name}"
        return f"the worker ended with exit status {self.exit_code}"


class WorkerStartFailed(WorkerFailed):
    """No worker could be started, or its initializer failed: the pool is broken for good.

    ``final`` says that another attempt would not help.
    """

    def __init__(self, reason: str, output: str = "", final: bool = False) -> None:
        super().__init__(reason, output, final)
        self.reason = reason
        self.output = output
        self.final = final

    def __str__(self) -> str:
        last = self.output.strip().rpartition("\n")[2]
        return f"{self.reason}: {last}" if last else self.reason


class WorkerStopped(WorkerFailed):
    """The pool was stopped while the task ran (``WorkerPool.kill_workers``)."""

    def __str__(self) -> str:
        return "the pool was stopped"


class RemoteError(Exception):
    """Stands for an exception of the task that cannot be sent: unpicklable, or SystemExit and the like.

    ``kind`` is its qualified class name, ``message`` its text.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class RemoteTraceback(Exception):
    """The traceback in the worker, as text: the ``__cause__`` of an exception that the task raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
