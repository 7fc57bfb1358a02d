"""Progress of a command on standard error, from the moment that a worker starts."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress

    from fuzzcompile.run.pool.worker_pool import WorkerState


class WaitLine:
    """One line on a terminal that names the step in progress; elsewhere a line for each step, the first time.

    ``as_json`` prints nothing where standard error is no terminal: a program reads the output. With ``several`` tasks,
    a terminal's line names the task, and elsewhere workers' steps are left out.
    """

    def __init__(self, *, as_json: bool = False, several: bool = False) -> None:
        self._terminal = sys.stderr.isatty()
        self._silent = as_json and not self._terminal
        self._several = several
        self._text = ""
        self._said = set[str]()
        self._lock = threading.Lock()
        self._line: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.stop()

    def say(self, text: str) -> None:
        """Show this as the step in progress."""
        with self._lock:  # workers report on threads of their own
            if text == self._text:
                return
            self._text = text
            if self._terminal:
                self._line = self._line or _start_line()
                self._line.update(self._line.task_ids[0], description=text)
            elif not self._silent and text not in self._said:
                self._said.add(text)
                click.echo(f"fuzzcompile: {text} ...", err=True)

    def show_worker_state(self, state: WorkerState) -> None:
        """Show the step that a worker reports as the one in progress; called by a thread of its pool."""
        if state.doing is None or not self._text or (self._several and not self._terminal):
            return
        self.say(f"{state.task}: {state.doing}" if self._several and state.task else state.doing)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Take the line off the terminal while something else is printed."""
        if self._line is not None:
            self._line.stop()
        yield
        if self._line is not None:
            self._line.start()


def _start_line() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description} ...", markup=False), TimeElapsedColumn())
    # Standard output may be a file while standard error is the terminal: rich would send both to the latter.
    console = Console(stderr=True)
    line = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    line.add_task("")
    line.start()
    return line
