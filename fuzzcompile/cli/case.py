"""``fuzzcompile corpus case``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from fuzzcompile import hints
from fuzzcompile.cli import options
from fuzzcompile.cli.corpus import corpus
from fuzzcompile.cli.findings import readable
from fuzzcompile.errors import UsageError

if TYPE_CHECKING:
    from fuzzcompile.corpus.judged import JudgedRun


@corpus.command()
@click.argument("name", metavar="HASH")
@options.corpus
@options.json_output
def case(name: str, location: str | None, as_json: bool) -> int:
    """Print the source of a judged case, and how it was judged, from its HASH or the beginning of it.

    Logs and reports call it case_HASH. The source goes to standard output, so that it can be judged again; a terminal
    gets it without the characters that would change what it shows:
    `fuzzcompile corpus case HASH > case.py; fuzzcompile triage case.py`.
    """
    from fuzzcompile.corpus import Store

    with Store.open(location, create=False) as store:
        found = store.judged(name)
    if as_json:
        runs = [{**vars(run), "created": run.created.isoformat()} for run in found.runs]
        known = {"sha256": found.sha256, "source": found.source, "trusted": not found.imported}
        click.echo(json.dumps({**known, "runs": runs}, allow_nan=False))
        return 0
    for run in found.runs:
        click.echo(readable(" ".join(_told(run).split())), err=True)
    if not found.source:
        raise UsageError(f"The source of {name} was dropped by `{hints.command('corpus', 'gc')}`: it was clean.")
    source = readable(found.source) if sys.stdout.isatty() else found.source
    click.echo(source, nl=not source.endswith("\n"), color=True)  # to a file as it is, whatever it holds
    if found.imported:
        click.echo("It comes from another corpus: judging it runs its code, so read it first.", err=True)
    if found.runs:
        click.echo(f"Judge it again: {readable(_again(found.runs[-1]))}", err=True)
    return 0


def _told(run: JudgedRun) -> str:
    """One line on a run."""
    environment, report = run.environment, run.report
    where = environment.get("target") or environment.get("device")
    processor = environment.get("device_name") or environment.get("cpu") or "an unknown processor"
    parts = [
        f"{run.created:%Y-%m-%d %H:%M} {report['verdict']}{' (screened)' if run.screened else ''}",
        f"torch {environment.get('torch')} for {where}, machine {environment.get('machine') or '?'} ({processor})",
        *([f"hit of {run.finding}"] if run.finding else []),
        *([f"place {run.place[1]} of stream {run.place[0]}"] if run.place else []),
        *(f"{what} {', '.join(map(str, named))}" for what, named in _conditions(run) if named),
    ]
    return "; ".join(parts)


def _conditions(run: JudgedRun) -> Iterable[tuple[str, Sequence[object]]]:
    for what, named in (run.conditions or {}).items():
        if isinstance(named, list):
            yield {"vetoes": "vetoes", "plants": "plants with hashes", "custom": "own passes"}[what], named


def _again(run: JudgedRun) -> str:
    """Return the command that judges the case again; plants and passes are the user's files, which the corpus lacks."""
    target = run.environment.get("target")
    device = "auto" if target else str(run.environment.get("device")).partition(":")[0]
    vetoes = next((tuple(named) for what, named in _conditions(run) if what == "vetoes"), ())
    return hints.command("triage", "case.py", device=device, target=target, veto=vetoes)
