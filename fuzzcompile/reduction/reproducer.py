"""Reproducers: cases that are also scripts, which show a bug with torch alone and pass once it is fixed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

import fuzzcompile
from fuzzcompile.contract import ReportJson, told
from fuzzcompile.errors import CaseError, UsageError
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.jobs import same_bug
from fuzzcompile.reduction.scripts import choice, sharing
from fuzzcompile.reduction.scripts.comparing import Script
from fuzzcompile.reduction.scripts.driving import Driving
from fuzzcompile.reduction.scripts.probe import probe
from fuzzcompile.reduction.scripts.sources import case_part, only_difference
from fuzzcompile.templating import environment

_WIDTH = 110
_BUG = "BUG: "
# For these verdicts eager and compiled differ, but neither is wrong.
_NOTHING_TO_SHOW = (Verdict.UNSTABLE, Verdict.PRECISION_CASTS, Verdict.INVALID)
_PHRASES = {
    Verdict.MISCOMPILE: "Wrong values",
    Verdict.WRONG_GRADIENT: "Wrong gradients",
    Verdict.NONFINITE: "NaN or infinity where eager has none,",
    Verdict.METADATA: "Wrong metadata",
    Verdict.ALIASING: "Wrong mutation",
    Verdict.PRECISION_LOSS: "Lost precision",
    Verdict.COMPILE_ERROR: "An error",
    Verdict.RUNTIME_ERROR: "An error at run time",
    Verdict.ACCEPTS_INVALID: "An invalid program is accepted",
    Verdict.CRASH: "A crash",
    Verdict.TIMEOUT: "No end",
    Verdict.NONDETERMINISTIC: "Results that change from run to run",
}


@dataclass(frozen=True)
class Confirmation:
    """A reproducer run alone: ``confirmed`` if it showed the bug there."""

    exit_status: int
    output: str
    confirmed: bool


def build_reproducer(source: str, report: ReportJson, *, neighbour: str | None = None) -> str:
    """The case as one script that needs torch only and exits with 1 on the bug, with 0 once it is fixed.

    It stays a valid case. Its docstring and ``__main__`` part are replaced, so a reproducer of a reproducer is the same
    text. The case runs eagerly in this process, which decides how short the script can be. A script for a GPU, or for a
    target, which is a GPU too, exits with 3 where there is none.

    Args:
        source: the text of the case.
        report: its report.
        neighbour: the source of a program that passes, quoted if it differs in one line only.

    Raises:
        CaseError: the source is no case.
        UsageError: the verdict is not a bug of the compiler.
    """
    if report.get("verdict") in _NOTHING_TO_SHOW:
        raise UsageError(f"There is no bug to reproduce: the verdict is {report['verdict']}.")
    try:
        kept = case_part(source)
    except SyntaxError as error:
        raise CaseError(f"The source is no case: it is not valid Python ({error}).") from error
    target = told(report)
    device = str(report.get("device") or "cpu") if target is None else "cuda"
    seen = probe(kept, _available(device))
    drive = Driving(seen, kept, device, with_backward=seen.case.backward, told=target is not None)
    script = choice.choose(drive, report, _remark(kept, neighbour))
    return f'"""{_summary(report, script)}"""\n{kept}\n{_main_part(script)}'


def confirm_reproducer(source: str, *, timeout: float = 180) -> Confirmation:
    """Run a reproducer in a clean process and folder, for at most ``timeout`` seconds.

    It must print its own verdict line, because a traceback ends Python with status 1 too. A bug planted into this
    process is not confirmed: the other process does not have it.
    """
    status, output = _alone(source, (), {}, timeout)
    said = any(line.startswith(_BUG) for line in output.splitlines())
    return Confirmation(status, output, status == 1 and said)


def confirm_for_target(source: str, report: ReportJson, *, timeout: float = 240) -> Confirmation:
    """Judge a reproducer for the target of ``report`` in a clean process: by itself it needs a GPU.

    It must show the bug of ``report``. As for `confirm_reproducer`, a planted bug is not confirmed.
    """
    command = ("-m", "fuzzcompile", "triage", "--json", "--target", told(report) or "")
    package = {"PYTHONPATH": str(Path(fuzzcompile.__file__).parents[1])}
    status, output = _alone(source, command, package, timeout)
    try:
        reached = json.loads(next((line for line in output.splitlines() if line.startswith("{")), "{}"))
    except json.JSONDecodeError:
        reached = {}
    name = reached.get("signature") or reached.get("verdict") or output
    return Confirmation(status, f"triage for {told(report)} says {name}\n", status == 1 and same_bug(report, reached))


def _alone(source: str, command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Exit status and output of ``python COMMAND repro.py``; the status is -1 if it was ended after ``timeout``."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        Path(folder, "repro.py").write_text(source, encoding="utf-8")
        # A file, not a pipe: the compiler's own workers may outlive the script and hold a pipe open.
        with Path(folder, "output.txt").open("w+b") as out:
            status = _run_alone([sys.executable, *command, "repro.py"], folder, environment, out, timeout)
            out.seek(0)
            output = out.read().decode(errors="replace")
    return (-1, f"{output}still running after {timeout:g} s\n") if status is None else (status, output)


def _run_alone(
    command: Sequence[str], folder: str, environment: Mapping[str, str], out: IO[bytes], timeout: float
) -> int | None:
    """Exit status of a command in ``folder``; None if it was ended after ``timeout`` seconds."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**kept, **environment},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _main_part(script: Script) -> str:
    template = environment().get_template("reports/reproducer.py.j2")
    body = template.render(s=script, d=script.drive, imports=[], enclosed=False)
    # The text decides which imports it needs, and whether its names clash with those of the case.
    needs, clashes = script.drive.needs(body), script.drive.clashes(body)
    return template.render(s=script, d=script.drive, imports=needs, enclosed=clashes)


def _available(device: str) -> torch.device:
    wanted = torch.device(device)
    return wanted if wanted.type != "cuda" or torch.cuda.is_available() else torch.device("cpu")


def _remark(source: str, neighbour: str | None) -> str:
    difference = only_difference(source, neighbour) if neighbour else None
    remark = f"Right with `{difference[1]}` instead of `{difference[0]}`." if difference else ""
    return remark if len(remark) <= _WIDTH else ""


def _summary(report: ReportJson, script: Script) -> str:
    """One line: the symptom, the culprit, the version of torch."""
    verdict, where = report.get("verdict"), f"torch {report.get('torch') or torch.__version__}"
    device, target = str(report.get("device") or "cpu"), told(report)
    if target is not None:
        where += f" told of {target}, on no GPU"
    elif device != "cpu":
        where += f" on {device.split(':')[0]}"
    phrase = next((text for name, text in _PHRASES.items() if name == verdict), None)
    if script.form == "memory":
        gained = any(sharing.gained(target.evidence) for target in script.targets)
        phrase = "Memory shared that eager does not share" if gained else "A copy where eager shares memory,"
    if phrase is None:
        return _clean(f"Eager and compiled in {where}: {verdict or 'not judged'}.")
    culprit = report.get("culprit") or {}
    names = list(dict.fromkeys(str(culprit[key]) for key in ("rewrite", "pass", "stage") if culprit.get(key)))
    while names:
        fault = names[0] + (f" ({', '.join(reversed(names[1:]))})" if names[1:] else "")
        said = "culprit" if culprit.get("necessary") else "suspect"
        line = _clean(f"{phrase} under torch.compile, {said} {fault}; {where}.".replace(",,", ","))
        if len(line) + 6 <= _WIDTH or len(names) == 1:
            return line
        names.pop()
    return _clean(f"{phrase} under torch.compile, not attributed; {where}.".replace(",,", ","))


def _clean(text: str) -> str:
    """Text fit for a docstring, without absolute paths."""
    return re.sub(r"(?<!\w)/\S+/", "", " ".join(text.split())).replace("\\", "/").replace('"', "'")
