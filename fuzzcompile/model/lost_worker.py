"""Reports on cases whose worker was lost, and the place at which it was lost. Needs no torch."""

from __future__ import annotations

import re

from fuzzcompile.model.contract import COMPILE, SCHEMA, ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, DetailsJson, FrameJson
from fuzzcompile.model.severity import rate_severity
from fuzzcompile.model.signatures import UNATTRIBUTED, normalise_message
from fuzzcompile.model.stages import CODEGEN, LOWERING, find_file_stage, is_compiler
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.model.versions import PACKAGE

_MOST_FRAMES = 3
_CURRENT = re.compile(r"^Current thread .*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)(?:\n    (.+))?', re.M)
# Files that Inductor generates are named by the hash of what they hold.
_GENERATED = re.compile(r".*/c[a-z0-9]{20,}\.py$")
_CALLED = re.compile(r"([\w.]+)\(")


def _find_stack_culprit(output: str, when: str) -> CulpritJson | None:
    """Return the innermost frames of the compiler on the stack of the thread that ran, as a culprit in doubt.

    ``output`` is what the worker printed last, with the stack that Python's faulthandler wrote ``when`` it was lost.
    None where the thread was in fuzzcompile's own code at last, or left no stack.
    """
    begins = [match.end() for match in _CURRENT.finditer(output)]
    stack, statement = list[FrameJson](), ""
    for match in _FRAME.finditer(output[begins[-1] :].partition("\n\n")[0] if begins else ""):
        file, line, function, text = match.groups()
        if not stack and file.startswith(str(PACKAGE)):
            return None
        name = file[file.rfind("/torch/") + 1 :]
        if is_compiler(name) or (not stack and _GENERATED.match(file)):
            statement = statement if stack else (text or "").strip()
            source = name if is_compiler(name) else None
            stack.append({"source": source, "line": int(line), "function": function})
    if not stack:
        return None
    first, source = stack[0], stack[0]["source"]
    kernel = _CALLED.search(statement) if source is None else None
    details: DetailsJson = {"stack": stack[:_MOST_FRAMES], "proof": f"the Python stack {when}"}
    if source is None:
        details["program"] = statement or "the generated program"
    return {
        "stage": CODEGEN if source is None else find_file_stage(source) or LOWERING,
        "pass": None,
        "rewrite": kernel[1] if kernel else None,
        "nodes": [],
        "source": source,
        "line": first["line"] if source is not None else None,
        "family": "unknown",
        "site": None,
        "step": None,
        "necessary": None,
        "sufficient": None,
        "siblings": [],
        "details": details,
    }


def report_worker_failure(
    case: str, torch_version: str, device: str, verdict: Verdict, detail: str, output: str = ""
) -> ReportJson:
    """Report on a case whose worker crashed or ran out of time while it was compiled.

    ``detail`` says how it was lost (the signature takes what stands before the first semicolon), and the stack in the
    ``output``, which it printed last, names the place at which it stood.
    """
    when = "at the time limit" if verdict is Verdict.TIMEOUT else "at the crash"
    report: ReportJson = {
        **_begin_report(case, torch_version, device, str(verdict), detail),
        "is_bug": True,
        "wrong": None,
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
            "layout_doubt": None,
            "warnings": [],
            "notes": [],
            "call": None,
        },
        "contributors": [],
        "changed_bits": [],
        "ablations": [],
        "rewrites": [],
        "suspects": [],
        "culprit": _find_stack_culprit(output, when),
        "workaround": None,
        "cause": None,
        "target": None,
        "signature": f"{UNATTRIBUTED}:{verdict}:{normalise_message(detail.split(';')[0])}",
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0, "screens": 0, "cause_screens": 0},
    }
    return {**report, "severity": rate_severity(report)}


def make_unjudged_record(case: str, torch_version: str, device: str, detail: str) -> ReportJson:
    """The stored form of a case of which nothing can be said: it is no bug and no clean case."""
    return {
        **_begin_report(case, torch_version, device, "unjudged", detail),
        "is_bug": False,
        "wrong": None,
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
