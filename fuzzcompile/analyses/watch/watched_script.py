"""Run a script watched, follow what the processes beside it report, and confirm what they found."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.analyses.watch.step_records import (
    STOP,
    WORK,
    StepReport,
    Summary,
    WatchSettings,
    read_job,
    steps_in,
    summarise,
    wrong_by_value,
)
from fuzzcompile.diagnosis.worker.file_triage import triage_files
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import CaseError, FuzzcompileError
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.run.plants import check_plants

_POLL = 0.1
# Seconds that an interrupted script has to end by itself, and one that is to stop at the first unexplained step.
_GRACE, _TO_NEXT_STEP = 10.0, 30.0


def check_script(path: Path) -> None:
    """Refuse a script that cannot be watched, before anything runs, by a CaseError that says why."""
    file = read_case_file(path)
    if file.kind == "case" and "compile" not in file.source:
        raise CaseError(
            f"{path} is a case file, which makes no steps; judge it with `{hints.format_command('triage', path)}`."
        )
    if file.kind == "notebook":
        raise CaseError(
            f"{path} is a notebook, and `watch` runs scripts: `jupyter nbconvert --to script` makes one of it, and "
            f"`{hints.format_command('triage', path)}` judges its first compiled call."
        )


def watch_script(
    script: Path,
    arguments: Sequence[str],
    settings: WatchSettings,
    conditions: Conditions,
    *,
    on_step: Callable[[StepReport], None],
    quiet: bool = False,
) -> Summary:
    """Run a script with its arguments in the working folder, watched, to its end or to where the settings end it.

    The case of an unexplained step is judged in a fresh process under ``conditions``. ``on_step`` gets each sampled
    step once it is judged; ``quiet`` sends what the script writes to standard output to standard error.
    """
    check_plants(settings.plants)
    folder = settings.folder
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as temporary:
        asked = Path(temporary) / "settings"
        asked.write_bytes(pickle.dumps(settings))
        command = [sys.executable, "-m", "fuzzcompile.analyses.watch.job", str(asked), str(script), *arguments]
        with subprocess.Popen(command, stdout=sys.stderr if quiet else None) as process:
            job = _WatchJob(process, folder, on_step, settings.stop_at_first)
            status = job.follow()
    summary = summarise(str(script), folder, script_status=status, interrupted=job.interrupted)
    shutil.rmtree(folder / WORK, ignore_errors=True)
    (folder / STOP).unlink(missing_ok=True)
    return summary if job.interrupted else _confirm_summary(summary, conditions)


@dataclass
class _WatchJob:
    process: subprocess.Popen[bytes]
    folder: Path
    on_step: Callable[[StepReport], None]
    stop_at_first: bool
    seen: int = 0
    interrupted: bool = False
    ours: bool = False

    def follow(self) -> int | None:
        """Report steps until the script and all processes beside it have ended; the script's own exit status."""
        try:
            self._until(lambda: self.process.poll() is not None)
            self._until(self._all_judged)
        except KeyboardInterrupt:
            self.interrupted = True
            self._end_script()
        finally:
            for pid in read_job(self.folder).processes:
                with contextlib.suppress(OSError):
                    # Still a fork of the script: its number may have been given to another process.
                    if b"fuzzcompile.analyses.watch.job" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.killpg(pid, signal.SIGKILL)
        self._report()
        return None if self.ours or self.interrupted else self.process.returncode

    def _until(self, done: Callable[[], bool]) -> None:
        stopping = math.inf
        while not done():
            self._report()
            if self.stop_at_first and (self.folder / STOP).exists() and self.process.poll() is None:
                stopping = min(stopping, time.monotonic())
                if time.monotonic() - stopping > _TO_NEXT_STEP:  # it does not come to its next step
                    self.ours = True
                    self._end_script()
            time.sleep(_POLL)

    def _report(self) -> None:
        steps = steps_in(self.folder)
        for step in steps[self.seen :]:
            self.on_step(step)
        self.seen = len(steps)

    def _all_judged(self) -> bool:
        """Return whether no process beside the script is left: each holds its lock as long as it lives."""
        pattern = "[0-9]*.lock" if (self.folder / STOP).exists() else "*.lock"  # else trajectories matter too
        for path in (self.folder / WORK).glob(pattern):
            with path.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def _end_script(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                self.process.wait(_GRACE if self.interrupted or number != signal.SIGINT else 0)
                return
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self.process.send_signal(number)
        self.process.wait()


def _confirm_summary(summary: Summary, conditions: Conditions) -> Summary:
    cases = next((step.cases for step in summary.unexplained if step.cases), ())
    if not cases or importlib.util.find_spec("safetensors") is None:
        return summary
    files = [summary.case] if summary.case is not None else [Path(case) for case in cases]
    try:
        answers = list(triage_files(files, conditions))
    except FuzzcompileError:
        return summary
    wrong = [(answer.path, answer.report) for answer in answers if answer.report and wrong_by_value(answer.report)]
    seen = summary.report
    if seen is not None and wrong_by_value(seen):
        again = any(report.get("signature") == seen.get("signature") for _, report in wrong)
        return replace(summary, alone=again)
    case, report = wrong[0] if wrong else (summary.case, seen)
    return replace(summary, report=report, case=case, alone=bool(wrong))
