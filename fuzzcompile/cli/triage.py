"""``fuzzcompile triage`` and ``fuzzcompile bisect``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fuzzcompile.cli import options


@click.command()
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CASE...")
@options.device
@options.veto
@options.plant
@options.timeout
@options.memory
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes.")
@options.json_output
def triage(cases: tuple[Path, ...], as_json: bool, **given: Any) -> int:
    """Judge case files: a bug or rounding, and if a bug, whose.

    CASE is a case file, a folder of them, or a glob. With several, --json prints one object a line.
    """
    return _triage(cases, as_json, proof=False, **given)


@click.command()
@click.argument("case", type=click.Path(path_type=Path))
@options.device
@options.veto
@options.plant
@options.timeout
@options.memory
@options.json_output
def bisect(case: Path, as_json: bool, **given: Any) -> int:
    """Name the rewrite at fault in a case file, and show the ablations that prove it."""
    return _triage((case,), as_json, proof=True, workers=1, **given)


def _triage(
    cases: Sequence[Path],
    as_json: bool,
    *,
    proof: bool,
    device: str,
    vetoes: tuple[str, ...],
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
    workers: int,
) -> int:
    from rich.console import Console

    from fuzzcompile.campaign.pool import Limits
    from fuzzcompile.campaign.triaging import Answer, case_files, overall_status, triage_files
    from fuzzcompile.reporting.verdict import print_report, report_console

    files = case_files(cases)
    out, answers = report_console(), list[Answer]()
    found = triage_files(
        files,
        device=device,
        vetoes=vetoes,
        plants=plants,
        limits=Limits(timeout, int(memory * 2**30)),
        workers=min(workers, len(files)),
    )
    with Console(stderr=True).status(f"Judging {files[0]} ...") as status:
        for answer in found:
            answers.append(answer)
            status.update(f"Judged {len(answers)} of {len(files)} ...")
            if answer.error is not None:
                click.echo(f"fuzzcompile: {answer.error}", err=True)
            if as_json:
                click.echo(json.dumps(answer.to_json(), allow_nan=False))
            elif answer.report is not None:
                print_report(out, answer.report, proof=proof, name=str(answer.path))
    return overall_status(answers)
