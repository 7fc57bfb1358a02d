"""Output of ``fuzzcompile minimize`` while it runs, and at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile import hints
from fuzzcompile.contract import told
from fuzzcompile.hints import Named

if TYPE_CHECKING:
    from fuzzcompile.reduction.search import Progress
    from fuzzcompile.worker.reductions import Minimized


class ProgressLine:
    """One line on stderr: size at the start and now, compiles spent, the reducer at work.

    A terminal's line is overwritten; elsewhere each improvement gets a line.
    """

    def __init__(self, source: str) -> None:
        self._start = time.monotonic()
        self._lines = sum(1 for line in source.splitlines() if line.strip())
        self._operators: int | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
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


def conclusion(small: Minimized, out: Path, named: Named, others: Path | None = None) -> Iterator[str]:
    """The result in sentences.

    Args:
        small: the result.
        out: where the reproducer was written.
        named: what the user asked to minimize, and with which options.
        others: where secondary candidates are written, if anywhere.
    """
    if small.note:
        yield f"Note: {small.note}."
    if small.interrupted:
        what = "the best so far, not confirmed in a clean process" if small.changed else "the case as it is"
        yield f"Interrupted after {small.tests} compiles and screens: {out} is {what} ({small.lines_after} lines)."
        yield f"To continue: {named.command('minimize', resume=True)}"
        return
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
        where = f"they are in {others}" if others is not None else "--others DIR writes them"
        yield f"{len(small.other_sources)} candidates failed in another way; {where}."
    if not small.finished:
        yield f"The budget ended the search; `{named.command('minimize', resume=True)}` continues it."


def confirmed(small: Minimized, out: Path, named: Named) -> str:
    """Return the sentences that the reproducer shows the bug, and what to do next."""
    target = told(small.report)
    if target is None:
        return f"Confirmed in a clean process. Next: {hints.script(out)}; {named.command('issue')}"
    draft = named.with_options(target=target).command("issue")
    return f"Confirmed in a clean process for {target}, on no GPU. Next: python {out} on a machine with one; {draft}"
