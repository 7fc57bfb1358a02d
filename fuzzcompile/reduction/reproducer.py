"""Reproducers: cases that are also scripts, which show a bug with torch alone and pass once it is fixed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch

import fuzzcompile
from fuzzcompile.contract import ReportJson, told
from fuzzcompile.errors import CaseError, UsageError
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.alone import run_alone
from fuzzcompile.reduction.jobs import same_bug
from fuzzcompile.reduction.scripts import choice, sharing
from fuzzcompile.reduction.scripts.comparing import Script
from fuzzcompile.reduction.scripts.custom import with_custom
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
    Verdict.NONFINITE: "NaN or infinity in other elements than in eager,",
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

    It stays a valid case. Of the user's own passes and backend it imports those that this process compiles with.
    Its docstring and ``__main__`` part are replaced, so a reproducer of a reproducer is the same
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
    return reproducer_of(script_of(source, report, neighbour=neighbour), report)


def script_of(source: str, report: ReportJson, *, neighbour: str | None = None, custom: bool = True) -> Script:
    """Choose the runs and comparisons that show the bug of ``report``, by eager runs in this process.

    Further args and errors are those of :func:`build_reproducer`.

    Args:
        source: the text of the case.
        report: its report.
        neighbour: the source of a program that passes.
        custom: import the user's own passes and backend, if this process compiles with any.
    """
    if report.get("verdict") in _NOTHING_TO_SHOW:
        raise UsageError(f"There is no bug to reproduce: the verdict is {report['verdict']}.")
    try:
        kept = with_custom(case_part(source)) if custom else case_part(source)
    except SyntaxError as error:
        raise CaseError(f"The source is no case: it is not valid Python ({error}).") from error
    target = told(report)
    device = str(report.get("device") or "cpu") if target is None else "cuda"
    seen = probe(kept, _available(device))
    drive = Driving(seen, kept, device, with_backward=seen.case.backward, told=target is not None)
    return choice.choose(drive, report, _remark(kept, neighbour))


def reproducer_of(script: Script, report: ReportJson) -> str:
    """The text of the reproducer for a script that was chosen for ``report``."""
    return f'"""{_summary(report, script)}"""\n{script.drive.source}\n{_main_part(script)}'


def confirm_reproducer(source: str, *, timeout: float = 180) -> Confirmation:
    """Run a reproducer in a clean process and folder, for at most ``timeout`` seconds.

    It must print its own verdict line, because a traceback ends Python with status 1 too. A bug planted into this
    process is not confirmed: the other process does not have it.
    """
    ran = run_alone(source, timeout=timeout)
    said = any(line.startswith(_BUG) for line in ran.output.splitlines())
    return Confirmation(ran.status, ran.output, ran.status == 1 and said)


def confirm_for_target(source: str, report: ReportJson, *, timeout: float = 240) -> Confirmation:
    """Judge a reproducer for the target of ``report`` in a clean process: by itself it needs a GPU.

    It must show the bug of ``report``. As for `confirm_reproducer`, a planted bug is not confirmed.
    """
    command = ("-m", "fuzzcompile", "triage", "--json", "--target", told(report) or "")
    package = {"PYTHONPATH": str(Path(fuzzcompile.__file__).parents[1])}
    ran = run_alone(source, command=command, environment=package, timeout=timeout)
    try:
        reached = json.loads(next((line for line in ran.output.splitlines() if line.startswith("{")), "{}"))
    except json.JSONDecodeError:
        reached = {}
    name = reached.get("signature") or reached.get("verdict") or ran.output
    shows = ran.status == 1 and same_bug(report, reached)
    return Confirmation(ran.status, f"triage for {told(report)} says {name}\n", shows)


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
