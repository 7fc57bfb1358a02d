"""``fuzzcompile triage``."""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import ScriptCommand, read_script_arguments
from fuzzcompile.front.cli.options import setting_option
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.severity import FailOn, Severity, rank, rate_effect, rate_severity

if TYPE_CHECKING:
    from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
    from fuzzcompile.front.known_bugs import IgnorePatterns
    from fuzzcompile.report.output_files import EventLog


@click.command(cls=ScriptCommand)
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
@options.output_file("--junit", help="Also write JUnit XML for CI.")
@options.fail_on
@options.sarif
@options.log
@click.option("--proof", is_flag=True, help="Also show the proof of the culprit: what was tried, and what came of it.")
@options.output_file(
    "--html",
    "page",
    help="Also write the answer as one HTML page to send: where values differ, culprit, graph before and after, steps.",
)
@click.option(
    "--dump-ledger",
    "dump",
    type=options.PATH,
    metavar="DIR",
    help="Write every graph of the compiler and every rewrite as text into this folder, which must be new or empty.",
)
@options.json_output
def triage(dump: Path | None, question: Question, **given: Any) -> int:
    """Say whether it is a bug or rounding, and name a bug's culprit.

    CASE is a script or notebook that calls torch.compile, a case file (it defines make()), a folder of them, or a glob.
    With several cases, --json prints one object a line, in the order given.

    --html and --dump-ledger are for one case.
    """
    if dump is not None:
        from fuzzcompile.report.output_files import make_empty_folder

        make_empty_folder(dump, "--dump-ledger")
    folder = str(dump.resolve()) if dump is not None else None
    question = replace(question, error_maps=given["page"] is not None, dump=folder, arguments=read_script_arguments())
    return _TriageCommand(question=question, **given).run()


@dataclass
class _TriageCommand:
    cases: Sequence[Path]
    question: Question
    conditions: Conditions
    as_json: bool
    proof: bool = False
    workers: int = 1
    baseline: Path | None = None
    ignored: tuple[str, ...] = ()
    junit: Path | None = None
    sarif: Path | None = None
    log: Path | None = None
    page: Path | None = None
    fail_on: str | None = None
    answers: list[FileAnswer] = field(default_factory=list)

    def run(self) -> int:
        """Judge the files, print the answers as they come, and return the exit status.

        The bugs of several files are listed at the end, the worst first.
        """
        from fuzzcompile.diagnosis.worker.file_triage import triage_files
        from fuzzcompile.front.cli.wait_line import WaitLine
        from fuzzcompile.front.known_bugs import Baseline, IgnorePatterns
        from fuzzcompile.model.versions import installed_torch
        from fuzzcompile.run.subprocesses import sigterm_interrupts

        ignored = IgnorePatterns.of(self.ignored)
        files = list_case_files(self.cases, ignored)
        if len(files) > 1 and (self.page is not None or self.question.dump is not None):
            raise UsageError(f"--html and --dump-ledger are for one case, and there are {len(files)}: name one.")
        known = Baseline.of(self.baseline, ignored)
        waiting = WaitLine(as_json=self.as_json, several=len(files) > 1)

        def show_start() -> None:
            waiting.say(f"starting a worker, which imports torch {installed_torch()}")
            importlib.import_module("fuzzcompile.report.verdict_text")  # while there is time: the answer needs it

        results = triage_files(
            files,
            self.conditions,
            self.question,
            workers=self.workers,
            describe=self.page is not None,
            listener=waiting.show_worker_state,
            meanwhile=show_start,
        )
        # On Ctrl-C the generator is closed at once, and its workers and files with it.
        with sigterm_interrupts(), contextlib.closing(results), self._log_events(files) as events, waiting:
            for answer in results:
                if known is not None and answer.report is not None and answer.report["is_bug"]:
                    listed = known.knows(answer.report)
                    answer = replace(answer, known=listed, status=0 if listed else answer.status)
                self.answers.append(answer)
                report = answer.report or {}
                said = {key: report.get(key) for key in ("verdict", "is_bug", "severity", "confidence", "signature")}
                rest = {"known": answer.known, "error": answer.error, "seconds": round(answer.seconds, 3)}
                events.write("case_judged", {"case": str(answer.path), **said, **rest})
                with waiting.pause():
                    self._show(answer)
                if len(self.answers) < len(files):
                    waiting.say(f"judged {len(self.answers)} of {len(files)}")
        if not self.as_json and sum(answer.report is not None for answer in self.answers) > 1:
            _list_bugs(self.answers)
        self._write_ci_files()
        return compute_status(self.answers, None if self.fail_on is None else FailOn.parse(self.fail_on))

    @contextlib.contextmanager
    def _log_events(self, files: Sequence[Path]) -> Iterator[EventLog]:
        from fuzzcompile.report.output_files import EventLog

        ended = "failed"
        with EventLog(self.log) as log:
            log.write("triage_started", {"cases": [str(path) for path in files]})
            try:
                yield log
                ended = "finished"
            except (KeyboardInterrupt, GeneratorExit):
                ended = "interrupted"
                raise
            finally:
                done = {"judged": len(self.answers), "cases": len(files)}
                log.write("triage_finished", {"ended": ended, "exit_status": compute_status(self.answers), **done})

    def _show(self, answer: FileAnswer) -> None:
        name = CommandSubject(str(answer.path), {**self.conditions.options(), **self.question.options()})
        if answer.error is not None:
            click.echo(f"fuzzcompile: {answer.error}", err=True)
        if self.as_json:
            click.echo(json.dumps(answer.to_json(), allow_nan=False))
        elif answer.report is not None:
            from fuzzcompile.report.verdict_text import print_report, report_console

            print_report(report_console(), answer.report, proof=self.proof, name=name, known=bool(answer.known))
        if self.page is not None and answer.report is not None:
            from fuzzcompile.programs.casefiles.case_file import read_case_file
            from fuzzcompile.report.output_files import write_whole
            from fuzzcompile.report.pages.case_page import render_case_page

            machine = answer.machine or {"torch": answer.report["torch"], "device": answer.report["device"]}
            source = read_case_file(answer.path).source
            text = render_case_page(answer.report, machine, name=name, source=source)
            write_whole(self.page, text.encode("utf-8"), "--html")

    def _write_ci_files(self) -> None:
        if self.junit is None and self.sarif is None:
            return
        from fuzzcompile.model.versions import __version__
        from fuzzcompile.report.ci_formats import Scanned, format_triage_junit, sarif
        from fuzzcompile.report.output_files import write_whole

        scanned = [Scanned(of.path, of.report, of.error, bool(of.known), of.seconds) for of in self.answers]
        if self.junit is not None:
            write_whole(self.junit, format_triage_junit(scanned), "--junit")
        if self.sarif is not None:
            write_whole(self.sarif, sarif(scanned, __version__), "--sarif")


def _list_bugs(answers: Sequence[FileAnswer]) -> None:
    from fuzzcompile.report.verdict_text import name_culprit

    bugs = [answer for answer in answers if answer.report is not None and answer.report["is_bug"]]
    click.echo(f"\n{len(bugs)} {'bug' if len(bugs) == 1 else 'bugs'}{', the worst first:' if len(bugs) > 1 else ''}")
    for answer in sorted(bugs, key=lambda answer: rank(answer.report)):
        report = answer.report or {}
        known = "  (known)" if answer.known else ""
        said = (report.get("severity"), report.get("verdict"), name_culprit(report.get("culprit")))
        click.echo(f"  {answer.path}  {'  '.join(map(str, said))}{known}")


def list_case_files(paths: Sequence[Path], ignored: IgnorePatterns | None = None) -> list[Path]:
    """The files that ``paths`` name: files as they are, folders and globs as their Python files in order.

    What ``ignored`` names is passed over in folders and globs.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            named = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        elif glob.has_magic(str(path)) and not path.exists():
            found = glob.glob(str(path))  # noqa: PTH207 (a pattern may be absolute)
            named = sorted(Path(name) for name in found if name.endswith((".py", ".ipynb")))
        else:
            files.append(path)
            continue
        if not named:
            what = "holds no Python files" if path.is_dir() else "matches no Python file"
            raise CaseError(f"{path} {what}: give a case, a folder of them, or a glob.")
        left = [file for file in named if ignored is None or not ignored.ignores_file(file)]
        if not left:
            raise CaseError(f"All {len(named)} files of {path} are ignored: name one of them, or change `ignore`.")
        files += left
    return files


def compute_status(answers: Sequence[FileAnswer], fail_on: FailOn | None = None) -> int:
    """3 if any file could not be judged, else 2 if any is no case, else 1 if a bug counts (any by default), else 0.

    What is by design counts where that is asked for.
    """
    statuses = {answer.status for answer in answers if answer.status != 1}
    asks = fail_on is not None and fail_on.least is Severity.BY_DESIGN
    bugs = [answer.report for answer in answers if answer.status == 1]
    counted = any(fail_on is None or fail_on.counts(bug["verdict"] if bug else None, rate_effect(bug)) for bug in bugs)
    counted |= asks and any(rate_severity(answer.report) is Severity.BY_DESIGN for answer in answers)
    return max(statuses | {int(counted)})
