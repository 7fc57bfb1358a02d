"""The processes beside the script: how many there may be, and what became of them."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import torch

from fuzzcompile.analyses.watch.modes import Mode
from fuzzcompile.analyses.watch.records import JobState

# Samples under way at once: each is a snapshot, which costs the memory that the script changes meanwhile.
MOST_UNDER_WAY = 8
_WAIT = 0.02


class Queue:
    """Forks of the script's process that judge samples, one after the other, in the order of the steps.

    Args:
        state: where lost samples are counted.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._pids: list[int] = []
        self._others: list[int] = []

    def refusal(self, state: Iterable[torch.Tensor]) -> str | None:
        """Why no sample can be taken now of a step that can change ``state``; None if it can."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return "the script uses CUDA, whose processes cannot be forked; steps are judged on the CPU only"
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return "the script is distributed, and its steps need the other processes"
        parameters = (tensor for tensor in state if isinstance(tensor, torch.nn.Parameter))
        if any(parameter.is_shared() for parameter in parameters):  # type: ignore[no-untyped-call]
            return "parameters lie in memory that other processes share, which a run beside the script would change"
        self.reap()
        if len(self._pids) >= MOST_UNDER_WAY:
            return "the process beside the script is behind"
        memory = psutil.Process().memory_info()
        if psutil.virtual_memory().available < (len(self._pids) + 3) * (memory.rss - memory.shared):
            return "too little memory is free for a snapshot"
        return None

    def forked(self, body: Callable[[int], Mode], lock: Path, *, counts: bool = True) -> Mode | None:
        """Fork. The fork runs ``body`` with the descriptor of its lock, which it holds as long as it lives.

        Returns:
            None in the script; in a run beside it the mode that ``body`` returned.
        """
        lock.parent.mkdir(parents=True, exist_ok=True)
        drawn = random.getstate()
        held = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for processes with threads
                pid = os.fork()
            if pid == 0:
                mode = body(held)
                random.setstate(drawn)  # which Python seeds anew in every fork
                return mode
        finally:
            os.close(held)
        (self._pids if counts else self._others).append(pid)
        self._state.processes.append(pid)
        return None

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until no sample is under way, or ``until`` holds."""
        self.reap()
        while self._pids and not until():
            time.sleep(_WAIT)
            self.reap()

    def reap(self) -> None:
        """Forget the processes that have ended, and count those that were killed."""
        self._pids = [pid for pid in self._pids if self._runs(pid, counts=True)]
        self._others = [pid for pid in self._others if self._runs(pid, counts=False)]

    def _runs(self, pid: int, *, counts: bool) -> bool:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # the script has reaped it
            return False
        if ended and status and counts:
            how = (
                f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
                if os.WIFSIGNALED(status)
                else "ended by an error"
            )
            self._state.lost[how] = self._state.lost.get(how, 0) + 1
        return not ended
