"""Reports on cases whose worker was lost, and the place at which it was lost. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.model.contract import COMPILE, SCHEMA, ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, DetailsJson, FrameJson
from fuzzcompile.model.severity import rate_severity
from fuzzcompile.model.signatures import UNATTRIBUTED, normalise_message
from fuzzcompile.model.stages import CODEGEN, LOWERING, find_file_stage, is_compiler
from fuzzcompile.model.verdicts import Verdict

_MOST_FRAMES = 3
_CURRENT = re.compile(r"^Current thread .*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)(?:\n    (.+))?', re.M)
# Files that Inductor generates are named by the hash of what they hold.
_GENERATED = re.compile(r".*/c[a-z0-9]{20,}\.py$")
_OURS = str(Path(__file__).parents[1])
_CALLED = re.compile(r"([\w.]+)\(")


@dataclass(frozen=True)
class StackFrame:
    """A frame of the compiler, or of a program that it generated: ``source`` is None then."""

    source: str | None  # the file, from the folder that holds torch
    line: int  # its line
    function: str  # the function
    statement: str = ""  # the line's text, where the file went with the worker


def parse_stack(output: str) -> list[StackFrame]:
    """The innermost frames of the compiler on the stack of the thread that ran, innermost first; at most three.

    Empty where the thread was in fuzzcompile's own code at last, or left no stack.

    Args:
        output: what the worker printed last, with the stack that Python's faulthandler wrote.
    """
    begins = [match.end() for match in _CURRENT.finditer(output)]
    if not begins:
        return []
    frames: list[StackFrame] = []
    for match in _FRAME.finditer(output[begins[-1] :].partition("\n\n")[0]):
        file, line, function, statement = match.groups()
        if not frames and file.startswith(_OURS):
            return []
        name = file[file.rfind("/torch/") + 1 :]
        if is_compiler(name) or (not frames and _GENERATED.match(file)):
            source = name if is_compiler(name) else None
            frames.append(StackFrame(source, int(line), function, (statement or "").strip()))
    return frames[:_MOST_FRAMES]


def make_stack_culprit(output: str, when: str) -> CulpritJson | None:
    """The place at which a lost worker stood, as a culprit of the contract, in doubt; None if no stack shows it.

    Args:
        output: what the worker printed last.
        when: when the stack was written.
    """
    frames = parse_stack(output)
    if not frames:
        return None
    first = frames[0]
    kernel = _CALLED.search(first.statement) if first.source is None else None
    stack: list[FrameJson] = [{"source": f.source, "line": f.line, "function": f.function} for f in frames]
    details: DetailsJson = {"stack": stack, "proof": f"the Python stack {when}"}
    if first.source is None:
        details["program"] = first.statement or "the generated program"
    return {
        "stage": CODEGEN if first.source is None else find_file_stage(first.source) or LOWERING,
        "pass": None,
        "rewrite": kernel[1] if kernel else None,
        "nodes": [],
        "source": first.source,
        "line": first.line if first.source is not None else None,
        "family": "unknown",
        "site": None,
        "step": None,
        "necessary": None,
        "sufficient": None,
        "siblings": [],
        "details": details,
    }


# Reports on cases whose judging was cut short, as JSON of the contract. Needs no torch: the parent writes them.


def report_worker_failure(
    case: str, torch_version: str, device: str, verdict: Verdict, detail: str, output: str = ""
) -> ReportJson:
    """Report on a case whose worker crashed or ran out of time while it was compiled.

    Args:
        case: name of the case.
        torch_version: the version of torch in the worker.
        device: where the case ran.
        verdict: what the loss of the worker means.
        detail: how the worker was lost; the signature takes what stands before the first semicolon.
        output: what the worker printed last; the stack in it names the place at which it stood.
    """
    when = "at the time limit" if verdict is Verdict.TIMEOUT else "at the crash"
    report: ReportJson = {
        **_begin_report(case, torch_version, device, str(verdict), detail),
        "is_bug": True,
        "evidence": {
            "outputs": [],
            "eager_deterministic": True,
            "float64_step": None,
            "survives_float64": None,
            "against": "eager",
            "path": COMPILE,
            "threads": 0,
            "graphs": 0,
            "graph_breaks": [],
            "randomness": None,
            "gives": None,
            "promise": None,
            "warnings": [],
            "notes": [],
        },
        "contributors": [],
        "changed_bits": [],
        "ablations": [],
        "rewrites": [],
        "suspects": [],
        "culprit": make_stack_culprit(output, when),
        "workaround": None,
        "cause": None,
        "target": None,
        "signature": f"{UNATTRIBUTED}:{verdict}:{normalise_message(detail.split(';')[0])}",
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0, "screens": 0, "cause_screens": 0},
    }
    return {**report, "severity": rate_severity(report)}


def make_unjudged_record(case: str, torch_version: str, device: str, detail: str) -> ReportJson:
    """The stored form of a case of which nothing can be said: it is no bug and no clean case.

    Args:
        case: name of the case.
        torch_version: the version of torch that should have judged it.
        device: where it should have run.
        detail: why nothing can be said.
    """
    return {
        **_begin_report(case, torch_version, device, "unjudged", detail),
        "is_bug": False,
        "evidence": {"outputs": []},
        "culprit": None,
        "signature": None,
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0},
    }


def _begin_report(case: str, torch_version: str, device: str, verdict: str, detail: str) -> ReportJson:
    return {
        "schema": SCHEMA,
        "case": case,
        "torch": torch_version,
        "device": device,
        "verdict": verdict,
        "confidence": "low",
        "detail": detail,
    }
