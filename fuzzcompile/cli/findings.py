"""``fuzzcompile minimize`` and ``fuzzcompile issue``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fuzzcompile.cli import options
from fuzzcompile.errors import CaseError, EnvironmentUnfit

if TYPE_CHECKING:
    from fuzzcompile.corpus import Store


@click.command()
@click.argument("target", metavar="CASE|FINDING")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; default repro_NAME.py.")
@click.option("--budget", default="5m", show_default=True, metavar="90s|10m", help="Time for the search.")
@click.option("--compiles", default=200, show_default=True, type=click.IntRange(min=1), help="Compiles and screens.")
@click.option(
    "--keep",
    type=click.Choice(["verdict", "culprit"]),
    default="culprit",
    show_default=True,
    help="What must stay: the kind of verdict, or the rewrite that is at fault too.",
)
@click.option(
    "--others",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for candidates that failed in another way: findings of their own, to be judged.",
)
@click.option("--resume", is_flag=True, help="Go on where a search for this case was ended.")
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
    compiles: int,
    keep: Literal["verdict", "culprit"],
    others: Path | None,
    resume: bool,
    device: str,
    location: str | None,
    vetoes: tuple[str, ...],
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
) -> int:
    """Make a case or a finding small, and write a reproducer that needs torch alone.

    A generated case (of the corpus) is shrunk through its recipe first; then, as any other case or script, through
    the graphs that dynamo captures of it. The reproducer exits with 1 on the bug and 0 when it is mended. Ctrl-C keeps
    the best so far; what was learned is kept in OUT.state until a search is finished, for --resume.
    """
    from fuzzcompile.campaign.budget import Budget
    from fuzzcompile.campaign.pool import Limits
    from fuzzcompile.campaign.secondary import store_by_catch
    from fuzzcompile.cli.minimising import INTERRUPTED, ProgressLine, conclusion
    from fuzzcompile.commands.minimize import keep as keep_reproducer
    from fuzzcompile.commands.minimize import minimise, subject_of_file, subject_of_finding, subject_of_state

    seconds = Budget.parse(budget).seconds
    if seconds is None:
        raise click.UsageError("minimize takes a time as --budget, such as 90s or 10m.")
    limits = Limits(timeout, int(memory * 2**30))
    path = Path(target)
    with _existing(location) as store:
        if path.is_file():
            out = out or Path(f"repro_{path.stem}.py")
            state = out.with_name(f"{out.name}.state")
            subject = subject_of_state(path, store, state) if resume else None
            if subject is None:
                click.echo(f"Judging {path} ...", err=True)
                subject = subject_of_file(path, store, device=device, vetoes=vetoes, plants=plants, limits=limits)
            if subject is None:
                click.echo(f"{path} shows no bug: there is nothing to minimise. `fuzzcompile triage` says why.")
                return 0
        else:
            subject = subject_of_finding(_needed(store, target), target)
            out = out or Path(f"repro_{subject.finding}.py")
            state = out.with_name(f"{out.name}.state")
        click.echo(f"Minimising: {subject.report['verdict']}, {subject.report['signature']} ...", err=True)
        with ProgressLine(subject.source) as line:
            small = minimise(
                subject,
                device=device,
                seconds=seconds,
                compiles=compiles,
                keep=keep,
                vetoes=vetoes,
                plants=plants,
                limits=limits,
                state=state,
                resume=resume,
                on_progress=line.show,
            )
        if store is not None and subject.finding is not None and not small.interrupted:
            keep_reproducer(store, subject.finding, small)
        _write(out, small.reproducer)
        for text in conclusion(small, out, target, others):
            click.echo(text)
        if store is not None and small.other_sources and not small.interrupted:
            click.echo(f"Judging {len(small.other_sources)} candidates that failed in another way ...", err=True)
            for one in store_by_catch(
                store, small.other_sources, device=device, vetoes=vetoes, plants=plants, limits=limits
            ):
                new = "another finding" if one.is_new else "known"
                click.echo(f"Met on the way: {one.finding} ({new}), {one.verdict}, {one.signature}")
    for number, source in enumerate(small.other_sources if others is not None else (), start=1):
        assert others is not None
        _write(others / f"{out.stem}_other_{number}.py", source)
    if small.interrupted:
        return INTERRUPTED
    if not small.confirmed and small.how != "as found":
        raise EnvironmentUnfit(
            f"{out} does not show the bug when run alone: {' '.join(small.confirmation.split())[-200:]}"
        )
    if small.confirmed:
        click.echo(f"Confirmed in a clean process. Next: python {out}; fuzzcompile issue {subject.finding or target}")
    return 0


@click.command()
@click.argument("target", metavar="FINDING|CASE")
@options.device
@options.corpus
def issue(target: str, device: str, location: str | None) -> int:
    """Print the draft of a GitHub issue, in Markdown, for a finding or a case file."""
    from fuzzcompile.commands.drafts import draft_of, draft_of_report

    with _existing(location) as store:
        if not Path(target).is_file():
            click.echo(draft_of(_needed(store, target), target))
            return 0
    from fuzzcompile.commands.minimize import minimise, subject_of_file

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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(f"Cannot write {path}: {error.strerror}; choose another --out.") from error
