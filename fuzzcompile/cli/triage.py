"""``fuzzcompile triage`` and ``fuzzcompile bisect``."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fuzzcompile.cli import options


@click.command()
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CASE...")
@options.judging
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Known bugs, by signature: earlier --json output, or one signature a line. They do not make the status 1.",
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML for CI too.")
@options.json_output
def triage(cases: tuple[Path, ...], **given: Any) -> int:
    """Judge case files: a bug or rounding, and if a bug, whose.

    CASE is a case file, a script that calls torch.compile, a folder of them, or a glob. With several, --json
    prints one object a line, in the order given.
    """
    return _triage(cases, proof=False, page=None, dump=None, **given)


@click.command()
@click.argument("case", type=click.Path(path_type=Path))
@options.judging
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the answer as one page of HTML too: culprit, graph before and after, steps, what was tried.",
)
@click.option(
    "--dump-ledger",
    "dump",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write every graph of the compiler and every rewrite as text into this folder, which must be new or empty.",
)
@options.json_output
def bisect(case: Path, **given: Any) -> int:
    """Name the rewrite at fault in a case file, and show what proves it."""
    return _triage((case,), proof=True, workers=1, baseline=None, junit=None, **given)


def _triage(
    cases: Sequence[Path],
    *,
    proof: bool,
    device: str,
    against: str,
    call: int | None,
    module: str | None,
    vetoes: tuple[str, ...],
    suspects: tuple[str, ...],
    plants: tuple[Path, ...],
    timeout: float,
    memory: float,
    workers: int,
    baseline: Path | None,
    junit: Path | None,
    page: Path | None,
    dump: Path | None,
    as_json: bool,
) -> int:
    from rich.console import Console

    from fuzzcompile.campaign.pool import Limits
    from fuzzcompile.commands.triage import Answer, Question, case_files, overall_status, triage_files
    from fuzzcompile.reporting import files as named
    from fuzzcompile.reporting.baseline import Baseline
    from fuzzcompile.reporting.junit import check_writable, write_junit
    from fuzzcompile.reporting.verdict import print_report, report_console

    files = case_files(cases)
    known = Baseline.read(baseline) if baseline is not None else None
    if junit is not None:
        check_writable(junit)
    if page is not None:
        named.check_writable(page, "--html")
    if dump is not None:
        named.make_empty_folder(dump, "--dump-ledger")
    out, answers = report_console(), list[Answer]()
    found = triage_files(
        files,
        device=device,
        question=Question(
            against=against,
            call=call,
            module=module,
            thorough=True,
            suspects=suspects,
            dump=str(dump.resolve()) if dump is not None else None,
        ),
        vetoes=vetoes,
        plants=plants,
        limits=Limits(timeout, int(memory * 2**30)),
        workers=min(workers, len(files)),
        baseline=known,
    )
    waiting = Console(stderr=True).status(f"Judging {files[0]} ...")
    # Closed at once on Ctrl-C, and its workers and files with it.
    with _sigterm_interrupts(), contextlib.closing(found), waiting as status:
        for answer in found:
            answers.append(answer)
            status.update(f"Judged {len(answers)} of {len(files)} ...")
            if answer.error is not None:
                click.echo(f"fuzzcompile: {answer.error}", err=True)
            if as_json:
                click.echo(json.dumps(answer.to_json(), allow_nan=False))
            elif answer.report is not None:
                print_report(out, answer.report, proof=proof, name=str(answer.path), known=bool(answer.known))
            if page is not None and answer.report is not None:
                _write_page(page, answer.report, str(answer.path))
    if junit is not None:
        write_junit(junit, [answer.to_junit() for answer in answers])
    return overall_status(answers)


def _write_page(page: Path, report: Mapping[str, Any], name: str) -> None:
    import torch

    from fuzzcompile.execution.environment import describe
    from fuzzcompile.reporting.files import write_whole
    from fuzzcompile.reporting.page import page_of

    text = page_of(report, describe(torch.device(report["device"])), name=name)
    write_whole(page, text.encode("utf-8"), "--html")


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within the block SIGTERM acts as Ctrl-C does: a job that is cancelled leaves nothing behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
