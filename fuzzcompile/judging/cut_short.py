"""Reports on cases whose judging was cut short, as JSON of the contract. Needs no torch: the parent writes them."""

from __future__ import annotations

from typing import Any, cast

from fuzzcompile.contract import SCHEMA, ReportJson
from fuzzcompile.judging.stacks import culprit_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.severity import severity
from fuzzcompile.sides import COMPILE
from fuzzcompile.signatures import UNATTRIBUTED, normalised


def worker_failure(
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
    report: dict[str, Any] = {
        **_beginning(case, torch_version, device, str(verdict), detail),
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
        **{name: [] for name in ("contributors", "changed_bits", "ablations", "rewrites", "suspects")},
        "culprit": culprit_of(output, when),
        **dict.fromkeys(("workaround", "cause", "target")),
        "signature": f"{UNATTRIBUTED}:{verdict}:{normalised(detail.split(';')[0])}",
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0, "screens": 0, "cause_screens": 0},
    }
    return cast(ReportJson, {**report, "severity": severity(cast(ReportJson, report))})


def unjudged(case: str, torch_version: str, device: str, detail: str) -> dict[str, Any]:
    """The stored form of a case of which nothing can be said: it is no bug and no clean case.

    Args:
        case: name of the case.
        torch_version: the version of torch that should have judged it.
        device: where it should have run.
        detail: why nothing can be said.
    """
    return {
        **_beginning(case, torch_version, device, "unjudged", detail),
        "is_bug": False,
        "evidence": {"outputs": []},
        "culprit": None,
        "signature": None,
        "cost": {"compiles": 0, "replays": 0, "seconds": 0.0},
    }


def _beginning(case: str, torch_version: str, device: str, verdict: str, detail: str) -> dict[str, Any]:
    said = {"case": case, "torch": torch_version, "device": device, "verdict": verdict}
    return {"schema": SCHEMA, **said, "confidence": "low", "detail": detail}
