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
    calls_collectives,
    read_job,
    steps_in,
    summarise,
    wrong_by_value,
)
from fuzzcompile.diagnosis.worker.file_triage import triage_files
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions, Question
from fuzzcompile.model.errors import CaseError, FuzzcompileError
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.seats import Seat, find_free_port, forms_group

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

    It runs in as many processes as the settings' ``size``, as ``torchrun`` starts them on one machine. The case of an
    unexplained step is judged in a fresh process under ``conditions``. ``on_step`` gets each sampled step once it is
    judged; ``quiet`` sends what the script writes to standard output to standard error.
    """
    check_plants(settings.plants)
    folder, port = settings.folder, find_free_port()
    # A script that forms a group gets one of its own, unless whoever started this has one for it.
    alone = "RANK" not in os.environ and forms_group(read_case_file(script).source)
    distributed = settings.size > 1 or alone
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as temporary, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(settings.size):
            asked = Path(temporary) / f"settings{rank}"
            asked.write_bytes(pickle.dumps(settings.at(rank)))
            command = [sys.executable, "-m", "fuzzcompile.analyses.watch.job", str(asked), str(script), *arguments]
            seated = {**os.environ, **Seat(rank, settings.size, port).environment()} if distributed else None
            started = subprocess.Popen(command, stdout=sys.stderr if quiet else None, env=seated)
            processes.append(stack.enter_context(started))
        job = _WatchJob(processes, settings, on_step)
        rank, status = job.follow()
    summary = summarise(str(script), folder, script_status=status, interrupted=job.interrupted)
    summary = replace(summary, nproc=settings.size, script_rank=rank if settings.size > 1 and status else None)
    shutil.rmtree(folder / WORK, ignore_errors=True)
    (folder / STOP).unlink(missing_ok=True)
    return summary if job.interrupted else _confirm_summary(summary, conditions, settings.size)


@dataclass
class _WatchJob:
    processes: Sequence[subprocess.Popen[bytes]]  # in the order of their ranks
    settings: WatchSettings
    on_step: Callable[[StepReport], None]
    seen: int = 0
    interrupted: bool = False
    ours: bool = False  # this program has ended the script
    failed: tuple[int, int] | None = None  # the rank that failed first, and its exit status

    def follow(self) -> tuple[int, int | None]:
        """Report steps until the script and all processes beside it have ended.

        What is returned is a rank and its own exit status: those of the first process of the script that failed.
        """
        try:
            self._until(self._is_over)
            self._until(self._all_judged)
        except KeyboardInterrupt:
            self.interrupted = True
            self._end_script()
        finally:
            for rank in range(self.settings.size):
                for pid in read_job(self.settings.at(rank).job).processes:
                    with contextlib.suppress(OSError):
                        # Still a fork of the script: its number may have been given to another process.
                        if b"fuzzcompile.analyses.watch.job" in Path(f"/proc/{pid}/cmdline").read_bytes():
                            os.killpg(pid, signal.SIGKILL)
        self._report()
        if self.ours or self.interrupted:
            return 0, None
        return self.failed or (0, self.processes[0].returncode)

    def _is_over(self) -> bool:
        """Return whether the script has ended; where one process fails alone, the others are ended soon after."""
        statuses = [process.poll() for process in self.processes]
        failed = [(rank, status) for rank, status in enumerate(statuses) if status]
        if failed and self.failed is None:
            self.failed = failed[0]
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(_POLL)  # they may end by themselves, as they miss it
            self._end_script()
        return None not in statuses

    def _until(self, done: Callable[[], bool]) -> None:
        stopping = math.inf
        while not done():
            self._report()
            running = any(process.poll() is None for process in self.processes)
            if self.settings.stop_at_first and (self.settings.folder / STOP).exists() and running:
                stopping = min(stopping, time.monotonic())
                if time.monotonic() - stopping > _TO_NEXT_STEP:  # it does not come to its next step
                    self.ours = True
                    self._end_script()
            time.sleep(_POLL)

    def _report(self) -> None:
        steps = steps_in(self.settings.folder)
        for step in steps[self.seen :]:
            self.on_step(step)
        self.seen = len(steps)

    def _all_judged(self) -> bool:
        """Return whether no process beside the script is left: each holds its lock as long as it lives."""
        folder = self.settings.folder
        pattern = "[0-9]*.lock" if (folder / STOP).exists() else "*.lock"  # else trajectories matter too
        for path in (folder / WORK).rglob(pattern):
            with path.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def _end_script(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            left = [process for process in self.processes if process.poll() is None]
            try:
                for process in left:
                    process.wait(_GRACE if self.interrupted or number != signal.SIGINT else 0)
                return
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                for process in left:
                    process.send_signal(number)
        for process in self.processes:
            process.wait()


def _confirm_summary(summary: Summary, conditions: Conditions, size: int) -> Summary:
    cases = next((step.cases for step in summary.unexplained if step.cases), ())
    if not cases or importlib.util.find_spec("safetensors") is None:
        return summary
    files = [summary.case] if summary.case is not None else [Path(case) for case in cases]
    try:
        together = size > 1 and any(map(calls_collectives, files))
        answers = list(triage_files(files, conditions, Question(nproc=size if together else None)))
    except FuzzcompileError:
        return summary
    wrong = [(answer.path, answer.report) for answer in answers if answer.report and wrong_by_value(answer.report)]
    seen = summary.report
    if seen is not None and wrong_by_value(seen):
        again = any(report.get("signature") == seen.get("signature") for _, report in wrong)
        return replace(summary, alone=again)
    case, report = wrong[0] if wrong else (summary.case, seen)
    return replace(summary, report=report, case=case, alone=bool(wrong))
