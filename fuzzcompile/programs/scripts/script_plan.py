"""The plan of a script: the case that it runs, the form in which it shows a bug, and the values that it compares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from fuzzcompile.model.contract import OutputJson, ReportJson, find_broken_promise
from fuzzcompile.model.evidence import RANDOM_STATE, AliasDifference, ObservableName
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.scripts import eager_probe
from fuzzcompile.programs.scripts.eager_probe import EagerProbe, Observable

Form = Literal[
    "values",
    "apart",
    "apart in float64",
    "integers",
    "metadata",
    "memory",
    "raises",
    "accepts",
    "nondeterministic",
    "process",
]


@dataclass(frozen=True)
class ComparedValue:
    """One observable that a script compares: the expression for it, and its evidence, if there is any.

    ``partner`` is the expression for a tensor that shares its memory in one of the runs.
    """

    observable: Observable
    expression: str
    evidence: OutputJson = field(default_factory=OutputJson)
    partner: str = ""


@dataclass(frozen=True)
class ScriptPlan:
    """How a script runs the case of ``probe``, and what it compares: `reproducer` and `plain_script` write it.

    Without ``with_backward`` the backward pass is left out, where nothing after it is compared. A case that was
    ``told`` of a GPU ran on the CPU, and the script runs it on the GPU.
    """

    probe: EagerProbe
    source: str
    device: str = "cpu"
    told: bool = False
    form: Form = "values"
    targets: tuple[ComparedValue, ...] = ()
    property_name: str = ""
    with_backward: bool = False
    remark: str = ""

    @property
    def on_gpu(self) -> bool:
        """Return whether the script needs a GPU."""
        return self.device.startswith("cuda")

    @property
    def calls(self) -> bool:
        """Return whether the case makes several calls in a row."""
        return len(self.probe.inputs) > 1

    @property
    def several(self) -> bool:
        """Return whether more than one observable is compared."""
        return len(self.targets) > 1

    @property
    def tensors(self) -> bool:
        """Return whether tensors are compared, not Python objects."""
        return all(target.observable.is_tensor for target in self.targets)

    @property
    def bound(self) -> str:
        """The expression for the largest allowed error."""
        if self.form == "apart in float64":
            return f"{format_number(FLOAT64_SHARE)} * {self._largest('eager')}"
        if self.form == "apart":
            return f"{format_number(share_apart(self.targets))} * {self._largest('eager')}"
        factor, share = _choose_bound(self.targets)
        return f"{factor:g} * error_eager" + (f" + {format_number(share)} * {self._largest('exact')}" if share else "")

    def _largest(self, run: str) -> str:
        finite = ".nan_to_num(0, 0, 0)" if self.probe.nonfinite else ""
        return f"{run}{finite}.abs().max().item()"


# Bounds: wide enough for rounding, narrow enough for the error that was seen.

# Relative part of torch.testing.assert_close's default tolerance.
_DEFAULT_RTOL = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
SINGLE_RTOL = 1.3e-6
# How far two float64 runs of one program may be apart, in units of the largest value.
FLOAT64_SHARE = 1e-9
# Perturbed runs are small samples of what rounding can do.
_NOISE_FACTOR = 3
# The error that was seen must exceed the bound by this much, or the bound says too little.
_MARGIN = 1.5


def _choose_bound(targets: Iterable[ComparedValue]) -> tuple[float, float]:
    """The widest usual bound that every error in the evidence exceeds; the widest of all without evidence.

    The compiled error may be the first number times the eager error plus the second times the largest value.
    """
    share = _find_share(targets)
    choices = ((10, share), (3, share), (3, 0.0), (1.5, 0.0))
    return next((choice for choice in choices if all(_exceeds(t, *choice) for t in targets)), choices[-1])


def share_apart(targets: Iterable[ComparedValue]) -> float:
    """Share of the largest value by which compiled and eager may differ where float64 cannot arbitrate."""
    share = _find_share(targets)
    return 10 * share if all(_exceeds(target, 0, 10 * share) for target in targets) else share


def _find_share(targets: Iterable[ComparedValue]) -> float:
    return max((_share(target) for target in targets), default=SINGLE_RTOL)


def _share(target: ComparedValue) -> float:
    dtype, largest = target.observable.dtype, target.observable.largest
    rtol = _DEFAULT_RTOL.get(dtype, SINGLE_RTOL) if dtype else SINGLE_RTOL
    noise = target.evidence.get("noise_floor")
    return max(rtol, _NOISE_FACTOR * float(noise) / largest) if noise and largest else rtol


def _exceeds(target: ComparedValue, factor: float, share: float) -> bool:
    compiled = target.evidence.get("max_abs_error_compiled")
    if compiled is None or not math.isfinite(compiled) or target.evidence.get("finding") == "missing":
        return True  # not measured, or not finite
    allowed = factor * (target.evidence.get("max_abs_error_eager") or 0.0) + share * target.observable.largest
    return bool(compiled > _MARGIN * allowed)


def format_number(value: float) -> str:
    """Two digits, without leading zeros in the exponent: 1.3e-6."""
    return f"{value:.2g}".replace("e-0", "e-")


# The shortest form of script that shows what a report found.

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
_NAMES_WIDTH = 80
# Gradients this much smaller than the largest are zero by symmetry: nothing but rounding is in them.
_VANISHING = 1e-6


def choose_comparison(plan: ScriptPlan, report: ReportJson) -> ScriptPlan:
    """The plan with the form and the values that show what ``report`` found.

    It compares the outputs that the evidence calls wrong, the worst first, or without evidence all that the verdict is
    about, up to the length of a readable list.
    """
    probe, verdict = plan.probe, str(report.get("verdict") or "")
    form = _FORMS.get(verdict)
    if form in ("raises", "accepts", "process"):
        return replace(plan, form=form, with_backward=probe.case.backward)
    evidence: Sequence[OutputJson] = (report.get("evidence") or {}).get("outputs") or ()
    wrong = sorted(_targets_from_evidence(probe, evidence), key=_badness, reverse=True)
    if verdict == Verdict.METADATA:
        plan = replace(plan, with_backward=probe.case.backward)
        return _compare_metadata(plan, wrong, str(report.get("detail") or ""))
    if wrong and all(target.evidence.get("finding") == "alias" for target in wrong):
        shared = _select_fitting([t for t in (_with_partner(probe, target) for target in wrong) if t])
        if shared:
            return replace(plan, form="memory", targets=shared)
    targets: Sequence[ComparedValue] = wrong or _targets_from_verdict(probe, verdict)
    if form is None and find_broken_promise(report) is not None:
        form = "integers"  # counts the elements with other bits
    elif form is None:
        hidden = not wrong and bool(evidence) and verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT)
        form, targets = _choose_value_form(probe, targets, hidden=hidden)
    targets = _select_fitting(targets)
    # Backward alone may make a gradient wrong, or move the random state.
    after = any(t.observable.kind == "gradient" or t.observable.name == RANDOM_STATE for t in targets)
    return replace(plan, form=form, targets=targets, with_backward=probe.case.backward and after)


def _targets_from_evidence(probe: EagerProbe, evidence: Sequence[OutputJson]) -> list[ComparedValue]:
    wrong = [entry for entry in evidence if entry.get("finding") not in _HARMLESS]
    targets = [t for t in (_target(probe, str(entry.get("name")), entry) for entry in wrong) if t is not None]
    # A wrong value matters more than right values in the wrong memory or layout, and a wrong output explains its
    # gradients.
    targets = [target for target in targets if target.evidence.get("finding") != "alias"] or targets
    targets = [target for target in targets if target.evidence.get("finding") not in _PROPERTY] or targets
    return [target for target in targets if target.observable.kind != "gradient"] or targets


def _targets_from_verdict(probe: EagerProbe, verdict: str) -> list[ComparedValue]:
    kinds = ("gradient",) if verdict == Verdict.WRONG_GRADIENT else ("output", "mutation")
    chosen = [seen for seen in probe.observables.values() if seen.kind in kinds]
    if verdict == Verdict.WRONG_GRADIENT:
        largest = max((seen.largest for seen in chosen), default=0.0)
        chosen = [seen for seen in chosen if seen.largest > _VANISHING * largest]
    return [target for target in (_target(probe, seen.name, {}) for seen in chosen) if target is not None]


def _target(probe: EagerProbe, name: str, evidence: OutputJson) -> ComparedValue | None:
    expression = eager_probe.find_expression(name, probe)
    # A mutation by the compiled run alone is missing from the eager run's observables.
    observable = probe.observables.get(name) or Observable(name, "mutation", True, probe.floating_dtype)
    return None if expression is None else ComparedValue(observable, expression, evidence)


def find_alias_difference(target: ComparedValue) -> AliasDifference | None:
    """Return the difference in shared memory that the evidence states, if any."""
    detail = str(target.evidence.get("detail") or "")
    return AliasDifference.parse(detail) if target.evidence.get("finding") == "alias" else None


def _with_partner(probe: EagerProbe, target: ComparedValue) -> ComparedValue | None:
    """The target and a tensor that shares its memory in one of the runs; None if a script cannot name that."""
    difference, name = find_alias_difference(target), target.observable.name
    call = ObservableName.parse(name).call
    for other in (*difference.gained, *difference.lost) if difference is not None else ():
        leaf = ObservableName.parse(other).leaf
        of_call = leaf is not None and leaf.kind in ("input", "argument")  # an input belongs to the same call
        partner = eager_probe.find_expression(str(ObservableName(other, call)) if of_call else other, probe)
        if partner is not None and eager_probe.is_tensor(name, probe):
            return replace(target, partner=partner)
    return None


def _badness(target: ComparedValue) -> float:
    error = target.evidence.get("max_abs_error_compiled")
    return math.inf if error is None else float(error) / (float(target.evidence.get("scale") or 0.0) or 1.0)


def _choose_value_form(
    probe: EagerProbe, targets: Sequence[ComparedValue], *, hidden: bool
) -> tuple[Form, Sequence[ComparedValue]]:
    floating = [target for target in targets if target.observable.floating]
    exact = [target for target in targets if target.evidence.get("finding") == "integer"]
    if exact or not floating:
        tensors = [target for target in exact or targets if target.observable.is_tensor]
        return "integers", tensors or list(exact or targets)[:1]
    if hidden and probe.float64:
        return "apart in float64", floating
    return ("values" if probe.float64 else "apart"), floating


def _compare_metadata(plan: ScriptPlan, wrong: list[ComparedValue], detail: str) -> ScriptPlan:
    structure = ComparedValue(Observable("the result", "output", False), "outs" if plan.calls else "out")
    named = [target for target in wrong if target.evidence.get("finding") in _PROPERTY]
    if not named and (wrong or " returns " in detail):
        return replace(plan, form="metadata", targets=(structure,), property_name="structure")
    targets = named or [t for t in _targets_from_verdict(plan.probe, Verdict.METADATA) if t.observable.is_tensor]
    findings = {str(target.evidence.get("finding")) for target in named}
    name = _PROPERTY[findings.pop()] if len(findings) == 1 else "metadata"
    return replace(plan, form="metadata", targets=_select_fitting(targets) or (structure,), property_name=name)


def _select_fitting(targets: Sequence[ComparedValue]) -> tuple[ComparedValue, ...]:
    taken: list[ComparedValue] = []
    for target in targets:
        if taken and sum(len(t.expression) + 2 for t in (*taken, target)) > _NAMES_WIDTH:
            break
        taken.append(target)
    return tuple(taken)
