"""``fuzzcompile bisect``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fuzzcompile.cli import options
from fuzzcompile.cli.triage import triage_and_print
from fuzzcompile.worker.conditions import Conditions, Question


@click.command()
@click.argument("case", required=False, type=options.NamedPath())
@options.model("case")
@options.question
@options.conditions
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the answer as one HTML page to send: where values differ, culprit, graph before and after, steps.",
)
@click.option(
    "--dump-ledger",
    "dump",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write every graph of the compiler and every rewrite as text into this folder, which must be new or empty.",
)
@options.json_output
def bisect(
    case: Path, page: Path | None, dump: Path | None, question: Question, conditions: Conditions, as_json: bool
) -> int:
    """Name the part of the compiler that causes a bug, and show the proof."""
    question = replace(question, error_maps=page is not None, dump=str(dump.resolve()) if dump is not None else None)
    return triage_and_print((case,), question, conditions, as_json=as_json, proof=True, page=page)
