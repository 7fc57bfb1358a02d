"""``fuzzcompile watch``."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.analyses.watch.step_records import DEFAULT_EVERY
from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import ScriptCommand, read_script_arguments
from fuzzcompile.model.conditions import Conditions, Limits

if TYPE_CHECKING:
    from fuzzcompile.analyses.watch.step_records import StepReport, Summary

_WIDTH = 120  # where standard error is no terminal


@click.command(cls=ScriptCommand)
@click.argument("script", type=options.PATH)
@click.option(
    "--every",
    default=DEFAULT_EVERY,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Sample every N-th step.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End the script after its N-th step.")
@click.option(
    "--stop-at",
    type=click.Choice(["first"]),
    help="End the script at the first sampled step that rounding does not explain. No sample is skipped then: the "
    "script waits for the process beside it.",
)
@click.option("--out", type=options.FOLDER, metavar="DIR", help="Folder for the steps and cases; default watch_SCRIPT.")
@options.output_file("--html", help="Also write a page with plots.")
@click.option(
    "--own-random",
    is_flag=True,
    help="Leave the compiler its own random stream. Without it the script compiles with fallback_random, so that "
    "compiled code draws what eager draws; with it, steps that draw are not judged.",
)
@options.nproc
@options.plant
@options.timeout
@options.memory
@options.json_output
def watch(
    script: Path,
    every: int,
    steps: int | None,
    stop_at: str | None,
    out: Path | None,
    html: Path | None,
    own_random: bool,
    nproc: int | None,
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
    as_json: bool,
) -> int:
    """Run a training or serving script, and judge sampled steps of its compiled callables beside it.

    SCRIPT runs unedited, as `python SCRIPT` would run it. At a sampled step the process forks: eager, float64 and
    perturbed runs continue the script from the same state to the end of the step. On the first step that rounding does
    not explain, that step becomes a case and is triaged. With `--nproc` the script runs in so many processes, and a
    step is judged over all of them together. The exit status is 3 if the script fails by itself or no step could be
    judged.
    """
    from fuzzcompile.analyses.watch.watched_script import check_script, watch_script
    from fuzzcompile.report import output_files as outputs

    check_script(script)
    options.refuse_torchrun(
        "run `fuzzcompile watch SCRIPT --nproc {size}` by itself, or call fuzzcompile.watch in the script"
    )
    folder = out or outputs.make_next_folder(Path(f"watch_{script.stem}"), "--out")
    outputs.make_empty_folder(folder, "--out")

    from fuzzcompile.analyses.watch.step_records import WatchSettings
    from fuzzcompile.analyses.watch.watch_report import page_of_watch
    from fuzzcompile.run.subprocesses import sigterm_interrupts

    settings = WatchSettings(
        folder.resolve(),
        every,
        steps,
        stop_at_first=stop_at is not None,
        plants=tuple(path.resolve() for path in plants),
        own_random=own_random,
        seconds=timeout,
        size=nproc or 1,
    )
    conditions = Conditions("cpu", plants=plants, limits=Limits(timeout, int(memory * 2**30)))
    show = functools.partial(_print_step, as_json=as_json)
    with sigterm_interrupts():
        summary = watch_script(script, read_script_arguments(), settings, conditions, on_step=show, quiet=as_json)
    _print_end(summary, as_json=as_json)
    if html is not None:
        outputs.write_whole(html, page_of_watch(summary).encode("utf-8"), "--html")
    return summary.exit_status


def _print_end(summary: Summary, *, as_json: bool) -> None:
    from rich.console import Console

    from fuzzcompile.analyses.watch.watch_report import print_summary
    from fuzzcompile.report.verdict_text import report_console

    if as_json:
        click.echo(json.dumps(summary.to_json(), allow_nan=False))
        print_summary(Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH), summary)
    else:
        print_summary(report_console(), summary)


def _print_step(step: StepReport, *, as_json: bool) -> None:
    from fuzzcompile.analyses.watch.watch_report import step_line

    if as_json:
        click.echo(json.dumps(asdict(step), allow_nan=False))
    else:
        click.echo(f"fuzzcompile: {step_line(step)}", err=True)
