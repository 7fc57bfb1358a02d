"""Choose the shortest form of script that shows what a report found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.contract import OutputJson, ReportJson, broken_bits
from fuzzcompile.execution.promised import RANDOM_STATE
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.scripts import naming, sharing
from fuzzcompile.reduction.scripts.comparing import Form, Script, Target
from fuzzcompile.reduction.scripts.driving import Driving
from fuzzcompile.reduction.scripts.probe import Observable, Probe

_HARMLESS = ("same", "close", "wild")
_FORMS: dict[str, Form] = {
    Verdict.COMPILE_ERROR: "raises",
    Verdict.RUNTIME_ERROR: "raises",
    Verdict.ACCEPTS_INVALID: "accepts",
    Verdict.NONDETERMINISTIC: "nondeterministic",
    Verdict.CRASH: "process",
    Verdict.TIMEOUT: "process",
}
_PROPERTY = {"dtype": "dtype", "shape": "shape", "stride": "strides"}
# Most characters in a list of observables.
_WIDTH = 80
# Gradients this much smaller than the largest are zero by symmetry: nothing but rounding is in them.
_VANISHING = 1e-6


def choose(drive: Driving, report: ReportJson, remark: str = "") -> Script:
    """The script for ``report`` on the case of ``drive``.

    It compares the outputs that the evidence calls wrong, the worst first, or without evidence all that the verdict is
    about, up to the length of a readable list.
    """
    verdict = str(report.get("verdict") or "")
    form = _FORMS.get(verdict)
    if form in ("raises", "accepts", "process"):
        return Script(drive, form, remark=remark)
    evidence: Sequence[OutputJson] = (report.get("evidence") or {}).get("outputs") or ()
    wrong = _worst_first(_of_evidence(drive.probe, evidence))
    if verdict == Verdict.METADATA:
        return _metadata(drive, wrong, str(report.get("detail") or ""), remark)
    if wrong and all(target.evidence.get("finding") == "alias" for target in wrong):
        shared = _fitting([target for target in (_with_partner(drive.probe, target) for target in wrong) if target])
        if shared:
            return Script(replace(drive, with_backward=False), "memory", shared, remark=remark)
    targets: Sequence[Target] = wrong or _of_verdict(drive.probe, verdict)
    if form is None and broken_bits(report) is not None:
        form = "integers"  # counts the elements with other bits
    elif form is None:
        hidden = not wrong and bool(evidence) and verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT)
        form, targets = _value_form(drive.probe, targets, hidden=hidden)
    targets = _fitting(targets)
    needs_backward = drive.probe.case.backward and any(_shows_after_backward(target.observable) for target in targets)
    return Script(replace(drive, with_backward=needs_backward), form, targets, remark=remark)


def _shows_after_backward(observable: Observable) -> bool:
    """Return whether backward alone may make it wrong: a gradient, or the random state that backward may move."""
    return observable.kind == "gradient" or observable.name == RANDOM_STATE


def _of_evidence(probe: Probe, evidence: Sequence[OutputJson]) -> list[Target]:
    wrong = [entry for entry in evidence if entry.get("finding") not in _HARMLESS]
    named = [_target(probe, str(entry.get("name")), entry) for entry in wrong]
    targets = [target for target in named if target is not None]
    # A wrong value matters more than right values in the wrong memory or layout, and a wrong output explains its
    # gradients.
    targets = [target for target in targets if target.evidence.get("finding") != "alias"] or targets
    targets = [target for target in targets if target.evidence.get("finding") not in _PROPERTY] or targets
    return [target for target in targets if target.observable.kind != "gradient"] or targets


def _of_verdict(probe: Probe, verdict: str) -> list[Target]:
    kinds = ("gradient",) if verdict == Verdict.WRONG_GRADIENT else ("output", "mutation")
    chosen = [seen for seen in probe.observables.values() if seen.kind in kinds]
    largest = max((seen.largest for seen in chosen), default=0.0)
    if verdict == Verdict.WRONG_GRADIENT:
        chosen = [seen for seen in chosen if seen.largest > _VANISHING * largest]
    named = [_target(probe, seen.name, {}) for seen in chosen]
    return [target for target in named if target is not None]


def _target(probe: Probe, name: str, evidence: OutputJson) -> Target | None:
    expression = naming.expression(name, probe)
    if expression is None:
        return None
    # A mutation by the compiled run alone is missing from the eager run's observables.
    observable = probe.observables.get(name) or Observable(name, "mutation", True, probe.floating_dtype)
    return Target(observable, expression, evidence)


def _with_partner(probe: Probe, target: Target) -> Target | None:
    """The target and a tensor that shares its memory in one of the runs; None if a script cannot name that."""
    for name in (*sharing.gained(target.evidence), *sharing.lost(target.evidence)):
        # An input belongs to the same call.
        call = target.observable.name.partition(".")[0]
        own = f"{call}.{name}" if call.startswith("call") and name.startswith(("input", "argument")) else name
        partner = naming.expression(own, probe)
        if partner is not None and naming.is_tensor(target.observable.name, probe):
            return replace(target, partner=partner)
    return None


def _worst_first(targets: list[Target]) -> list[Target]:
    def badness(target: Target) -> float:
        error = target.evidence.get("max_abs_error_compiled")
        if error is None:
            return float("inf")
        return float(error) / (float(target.evidence.get("scale") or 0.0) or 1.0)

    return sorted(targets, key=badness, reverse=True)


def _value_form(probe: Probe, targets: Sequence[Target], *, hidden: bool) -> tuple[Form, Sequence[Target]]:
    floating = [target for target in targets if target.observable.floating]
    exact = [target for target in targets if target.evidence.get("finding") == "integer"]
    if exact or not floating:
        objects = [target for target in exact or targets if not target.observable.is_tensor]
        return "integers", [target for target in exact or targets if target not in objects] or objects[:1]
    if hidden and probe.float64:
        return "apart in float64", floating
    return ("values" if probe.float64 else "apart"), floating


def _metadata(drive: Driving, wrong: list[Target], detail: str, remark: str) -> Script:
    whole = "outs" if len(drive.probe.inputs) > 1 else "out"
    structure = Target(Observable("the result", "output", False), whole)
    named = [target for target in wrong if target.evidence.get("finding") in _PROPERTY]
    if not named and (wrong or " returns " in detail):
        return Script(drive, "metadata", (structure,), "structure", remark)
    targets = named or [t for t in _of_verdict(drive.probe, Verdict.METADATA) if t.observable.is_tensor]
    findings = {str(target.evidence.get("finding")) for target in named}
    prop = _PROPERTY[findings.pop()] if len(findings) == 1 else "metadata"
    return Script(drive, "metadata", _fitting(targets) or (structure,), prop, remark)


def _fitting(targets: Sequence[Target]) -> tuple[Target, ...]:
    taken: list[Target] = []
    for target in targets:
        if taken and sum(len(t.expression) + 2 for t in (*taken, target)) > _WIDTH:
            break
        taken.append(target)
    return tuple(taken)
