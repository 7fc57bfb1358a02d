"""``fuzzcompile minimize`` and ``fuzzcompile issue``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.cli import options
from fuzzcompile.errors import CaseError, EnvironmentUnfit

if TYPE_CHECKING:
    from fuzzcompile.corpus import Store


@click.command()
@click.argument("target", metavar="CASE|FINDING")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; default repro_NAME.py.")
@click.option("--budget", default="5m", show_default=True, metavar="90s|10m", help="Time for the search.")
@options.device
@options.corpus
@options.veto
@options.plant
@options.timeout
@options.memory
def minimize(
    target: str,
    out: Path | None,
    budget: str,
    device: str,
    location: str | None,
    vetoes: tuple[str, ...],
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
) -> int:
    """Make a case or a finding small, and write a reproducer that needs torch alone.

    A generated case (of the corpus) is shrunk through its recipe; any other file is kept as it is and given
    the check. The reproducer exits with 1 on the bug and 0 when it is mended.
    """
    from rich.console import Console

    from fuzzcompile.campaign.budget import Budget
    from fuzzcompile.campaign.minimising import keep, minimise, subject_of_file, subject_of_finding
    from fuzzcompile.campaign.pool import Limits
    from fuzzcompile.loading import defines_make

    seconds = Budget.parse(budget).seconds
    if seconds is None:
        raise click.UsageError("minimize takes a time as --budget, such as 90s or 10m.")
    limits = Limits(timeout, int(memory * 2**30))
    path = Path(target)
    with _existing(location) as store:
        if path.is_file():
            click.echo(f"Judging {path} ...", err=True)
            subject = subject_of_file(path, store, device=device, vetoes=vetoes, plants=plants, limits=limits)
            if subject is None:
                click.echo(f"{path} shows no bug: there is nothing to minimise. `fuzzcompile triage` says why.")
                return 0
        else:
            subject = subject_of_finding(_needed(store, target), target)
        if subject.recipe is None or subject.recipe.choices is None:
            click.echo("No recipe of this case is known: it is kept as it is.", err=True)
        if not defines_make(subject.source):
            click.echo(
                f"{path} is a script and no case with make(): it is kept as it is. "
                f"`fuzzcompile issue {path}` drafts a report with it."
            )
            return 0
        what = f"Minimising: {subject.report['verdict']}, {subject.report['signature']} ..."
        click.echo(what, err=True)
        with Console(stderr=True).status(what):
            small = minimise(subject, device=device, seconds=seconds, vetoes=vetoes, plants=plants, limits=limits)
        if store is not None and subject.finding is not None:
            keep(store, subject.finding, small)
    out = out or Path(f"repro_{path.stem if path.is_file() else subject.finding}.py")
    _write(out, small.reproducer)
    click.echo(
        f"{out}: {small.lines_after} lines with its check ({small.lines_before} before), {small.tests} tests "
        f"in {small.seconds:.0f} s."
    )
    if not small.confirmed:
        raise EnvironmentUnfit(
            f"{out} does not show the bug when run alone: {' '.join(small.confirmation.split())[-200:]}"
        )
    click.echo(f"Confirmed in a clean process. Next: python {out}; fuzzcompile issue {subject.finding or target}")
    return 0


@click.command()
@click.argument("target", metavar="FINDING|CASE")
@options.device
@options.corpus
def issue(target: str, device: str, location: str | None) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding or a case file."""
    from fuzzcompile.campaign.drafts import draft_of, draft_of_report

    with _existing(location) as store:
        if not Path(target).is_file():
            click.echo(draft_of(_needed(store, target), target))
            return 0
    from fuzzcompile.campaign.minimising import minimise, subject_of_file

    subject = subject_of_file(Path(target), None, device=device)
    if subject is None:
        click.echo(f"{target} shows no bug: there is nothing to report. `fuzzcompile triage` says why.")
        return 0
    small = minimise(subject, device=device, seconds=60.0)
    click.echo(draft_of_report(small, device))
    return 0


@contextlib.contextmanager
def _existing(location: str | None) -> Iterator[Store | None]:
    """The corpus, if there is one; a wrong place that was named is an error."""
    from fuzzcompile.corpus import CorpusError, Store

    try:
        store = Store.open(location, create=False)
    except CorpusError:
        if location is not None:
            raise
        yield None
        return
    with store:
        yield store


def _needed(store: Store | None, target: str) -> Store:
    if store is None:
        raise CaseError(f"{target} is no file, and there is no corpus here; name a case file or use --corpus.")
    return store


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"Cannot write {path}: {error.strerror}; choose another --out.") from error
