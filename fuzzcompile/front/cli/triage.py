"""``fuzzcompile triage``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.options import setting_option
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.settings import IgnorePatterns, read_settings
from fuzzcompile.model.severity import Severity

if TYPE_CHECKING:
    from fuzzcompile.front.cli.wait_line import WaitLine
    from fuzzcompile.front.commands.triage import FileAnswer


@click.command()
@click.argument("cases", nargs=-1, type=options.NamedPath(), metavar="[CASE...]")
@options.model("cases", lambda path: (path,))
@options.question
@options.conditions
@setting_option("workers", default=1, show_default=True, help="Worker processes.")
@setting_option(
    "baseline",
    metavar="FILE",
    help="Known bugs: earlier --json output, or one signature a line. They do not make the exit status 1.",
)
@options.ignore
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML for CI.")
@options.fail_on
@options.sarif
@options.log
@options.json_output
def triage(
    cases: tuple[Path, ...],
    workers: int,
    baseline: Path | None,
    ignored: tuple[str, ...],
    junit: Path | None,
    fail_on: str | None,
    sarif: Path | None,
    log: Path | None,
    question: Question,
    conditions: Conditions,
    as_json: bool,
) -> int:
    """Say whether it is a bug or rounding, and name a bug's culprit.

    CASE is a script or notebook that calls torch.compile, a case file (it defines make()), a folder of them, or a glob.
    With several, --json prints one object a line, in the order given.
    """
    least = None if fail_on is None else Severity(fail_on)
    return triage_and_print(
        cases,
        question,
        conditions,
        as_json=as_json,
        workers=workers,
        baseline=baseline,
        ignored=read_settings().make_ignore_patterns(ignored),
        junit=junit,
        sarif=sarif,
        log=log,
        least=least,
    )


def triage_and_print(
    cases: Sequence[Path],
    question: Question,
    conditions: Conditions,
    *,
    as_json: bool,
    proof: bool = False,
    workers: int = 1,
    baseline: Path | None = None,
    ignored: IgnorePatterns | None = None,
    junit: Path | None = None,
    sarif: Path | None = None,
    log: Path | None = None,
    page: Path | None = None,
    least: Severity | None = None,
) -> int:
    """Judge files, print the answers as they come, and return the exit status of ``triage`` and ``bisect``.

    The bugs of several files are listed at the end, the worst first. With ``least``, only a bug that is at least as bad
    gives the status 1.
    """
    from fuzzcompile.front.cli.wait_line import WaitLine
    from fuzzcompile.front.commands import triage as command
    from fuzzcompile.run.subprocesses import sigterm_interrupts

    files = command.list_case_files(cases, ignored)
    known = command.Baseline.of(baseline, ignored)
    _check_outputs(question, junit, sarif, page)
    typed = {**conditions.options(), **question.options()}
    answers = list[command.FileAnswer]()
    waiting = WaitLine(as_json=as_json, several=len(files) > 1)
    results = command.triage_files(
        files,
        conditions,
        question,
        workers=workers,
        baseline=known,
        describe=page is not None,
        listener=waiting.show_worker_state,
        meanwhile=functools.partial(_show_start, waiting),
    )
    # On Ctrl-C the generator is closed at once, and its workers and files with it.
    with sigterm_interrupts(), contextlib.closing(results), command.TriageLog(log, files) as events, waiting:
        for answer in results:
            answers.append(answer)
            events.log_answer(answer)
            name = CommandSubject(str(answer.path), typed)
            with waiting.pause():
                _print(answer, name, as_json=as_json, proof=proof)
            if page is not None and answer.report is not None:
                _write_page(page, answer, name)
            if len(answers) < len(files):
                waiting.say(f"judged {len(answers)} of {len(files)}")
    if not as_json and sum(answer.report is not None for answer in answers) > 1:
        _list_bugs([answer for answer in answers if answer.report is not None and answer.report["is_bug"]])
    _write_ci_files(answers, junit, sarif)
    return command.compute_status(answers, least)


def _show_start(waiting: WaitLine) -> None:
    from fuzzcompile.model.versions import installed_torch

    waiting.say(f"starting a worker, which imports torch {installed_torch()}")
    importlib.import_module("fuzzcompile.report.verdict_text")  # while there is time: the answer needs it


def _check_outputs(question: Question, junit: Path | None, sarif: Path | None, page: Path | None) -> None:
    from fuzzcompile.report import output_files as outputs

    for file, option in ((junit, "--junit"), (sarif, "--sarif"), (page, "--html")):
        if file is not None:
            outputs.check_writable(file, option)
    if question.dump is not None:
        outputs.make_empty_folder(Path(question.dump), "--dump-ledger")


def _write_ci_files(answers: Sequence[FileAnswer], junit: Path | None, sarif: Path | None) -> None:
    from fuzzcompile.model.versions import __version__
    from fuzzcompile.report.output_files import write_whole

    if junit is not None:
        from fuzzcompile.report.ci_formats import format_triage_junit

        write_whole(junit, format_triage_junit([answer.to_scanned() for answer in answers]), "--junit")
    if sarif is not None:
        from fuzzcompile.report.ci_formats import sarif as sarif_log

        write_whole(sarif, sarif_log([answer.to_scanned() for answer in answers], __version__), "--sarif")


def _print(answer: FileAnswer, name: CommandSubject, *, as_json: bool, proof: bool) -> None:
    if answer.error is not None:
        click.echo(f"fuzzcompile: {answer.error}", err=True)
    if as_json:
        click.echo(json.dumps(answer.to_json(), allow_nan=False))
    elif answer.report is not None:
        from fuzzcompile.report.verdict_text import print_report, report_console

        print_report(report_console(), answer.report, proof=proof, name=name, known=bool(answer.known))


def _list_bugs(bugs: Sequence[FileAnswer]) -> None:
    """One line for each bug, the worst first; those of equal severity in the order given."""
    from fuzzcompile.model.severity import rank
    from fuzzcompile.report.verdict_text import name_culprit

    click.echo(f"\n{len(bugs)} {'bug' if len(bugs) == 1 else 'bugs'}{', the worst first:' if len(bugs) > 1 else ''}")
    for answer in sorted(bugs, key=lambda answer: rank(answer.report)):
        report = answer.report or {}
        known = "  (known)" if answer.known else ""
        said = (report.get("severity"), report.get("verdict"), name_culprit(report.get("culprit")))
        click.echo(f"  {answer.path}  {'  '.join(map(str, said))}{known}")


def _write_page(page: Path, answer: FileAnswer, name: CommandSubject) -> None:
    from fuzzcompile.programs.casefiles.case_file import read_case_file
    from fuzzcompile.report.output_files import write_whole
    from fuzzcompile.report.pages.case_page import render_case_page

    assert answer.report is not None
    machine = answer.machine or {"torch": answer.report["torch"], "device": answer.report["device"]}
    source = read_case_file(answer.path).source
    text = render_case_page(answer.report, machine, name=name, source=source)
    write_whole(page, text.encode("utf-8"), "--html")


# ``fuzzcompile bisect``.


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
