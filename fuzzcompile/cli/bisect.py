"""``fuzzcompile bisect``."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.triage import triage_and_print


@click.command()
@click.argument("case", type=click.Path(path_type=Path))
@options.judging
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the answer as one HTML page: culprit, graph before and after, steps, ablations.",
)
@click.option(
    "--dump-ledger",
    "dump",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write every graph of the compiler and every rewrite as text into this folder, which must be new or empty.",
)
@options.json_output
def bisect(case: Path, page: Path | None, dump: Path | None, **judging: Unpack[options.Judging]) -> int:
    """Name the rewrite that causes a case file's bug, and show the proof."""
    return triage_and_print((case,), proof=True, page=page, dump=dump, **judging)
