"""What ``fuzzcompile minimize`` shows while it runs, and what it says at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fuzzcompile.reduction.search import Progress
    from fuzzcompile.shrinking import Shrunk


class ProgressLine:
    """One line on stderr: size at the start and now, compiles used, the reducer at work.

    On a terminal the line is written anew; elsewhere a line is written for every improvement.
    """

    def __init__(self, source: str) -> None:
        self._start = time.monotonic()
        self._lines = sum(1 for line in source.splitlines() if line.strip())
        self._operators: int | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if sys.stderr.isatty():
            click.echo("\r\033[K", nl=False, err=True)

    def show(self, progress: Progress) -> None:
        """Show the state of a search."""
        if self._operators is None:
            self._operators = progress.operators
        size = f"{self._lines} -> {progress.lines} lines"
        if progress.operators is not None and self._operators is not None:
            size += f", {self._operators} -> {progress.operators} operators"
        used = f"{progress.compiles} compiles, {progress.screens} screens"
        text = f"  {time.monotonic() - self._start:4.0f} s  {size}  {used}  {progress.reducer}"
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", nl=False, err=True)
        elif progress.improved:
            click.echo(text, err=True)


def conclusion(small: Shrunk, out: Path) -> Iterator[str]:
    """What was reached, in sentences."""
    if small.note:
        yield f"Note: {small.note}."
    if not small.changed:
        what = "nothing smaller was found" if small.finished else "nothing smaller was found within the budget"
        yield f"{out}: {what}; the case is kept as it is ({small.tests} tests in {small.seconds:.0f} s)."
        return
    operators = ""
    if small.operators is not None and small.operators_before is not None:
        operators = f", {small.operators} operators ({small.operators_before} before)"
    yield (
        f"{out}: {small.lines_after} lines with its check ({small.lines_before} before){operators}, "
        f"{small.tests} compiles and screens in {small.seconds:.0f} s."
    )
    if small.other_sources:
        yield f"{len(small.other_sources)} candidates failed in another way; --others DIR writes them."
    if not small.finished:
        yield "The search was ended before it was through; --resume goes on with it."
