"""Programs of a grid that wait for each other at a barrier: each has a thread, and one thread runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

P = TypeVar("P")


class Abandoned(Exception):
    """Raised in the threads of programs when another program failed."""


class Meeting:
    """Runs programs in turns; each turn ends where the program waits, or ends."""

    def __init__(self) -> None:
        self._turn = threading.Semaphore(0)
        self._mine: dict[int, threading.Semaphore] = {}
        self._error: BaseException | None = None

    def run(self, run: Callable[[P], None], programs: Sequence[P], enter: Callable[[P], None]) -> None:
        """Run all programs.

        Args:
            run: runs one program.
            programs: in the order of their turns.
            enter: called with a program at the beginning of each of its turns.

        Raises:
            Exception: what the first program that failed raised.
        """
        try:
            self._take_turns(run, programs, enter)
        finally:
            self._error = self._error or Abandoned()
            for semaphore in self._mine.values():
                semaphore.release()

    def _take_turns(self, run: Callable[[P], None], programs: Sequence[P], enter: Callable[[P], None]) -> None:
        threads = [threading.Thread(target=self._body, args=(run, program), daemon=True) for program in programs]
        waiting = []
        for thread, program in zip(threads, programs, strict=True):
            enter(program)
            thread.start()
            self._turn.acquire()
            waiting.append((thread, program))
        while waiting := [(thread, program) for thread, program in waiting if thread.ident in self._mine]:
            for thread, program in waiting:
                enter(program)
                self._mine.pop(thread.ident or 0).release()
                self._turn.acquire()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """End the turn of the program that calls; return when all programs have come here or ended."""
        mine = self._mine[threading.get_ident()] = threading.Semaphore(0)
        self._turn.release()
        mine.acquire()
        if self._error is not None:
            raise Abandoned

    def _body(self, run: Callable[[P], None], program: P) -> None:
        try:
            with np.errstate(all="ignore"):
                if self._error is None:
                    run(program)
        except Abandoned:
            pass
        except BaseException as error:  # re-raised in the thread that asked
            self._error = self._error or error
        finally:
            self._turn.release()
