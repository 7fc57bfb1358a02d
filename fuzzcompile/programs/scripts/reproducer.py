"""Reproducers: cases that are also scripts, which show a bug with torch alone and pass once it is fixed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.compiler.custom_code import describe_backend, has_custom_code, list_passes
from fuzzcompile.compiler.custom_imports import find_root, get_module_name
from fuzzcompile.model.contract import OutputJson, ReportJson, find_broken_promise, read_target
from fuzzcompile.model.custom import ObjectPath, is_custom
from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.model.evidence import RANDOM_STATE, AliasDifference, ObservableName
from fuzzcompile.model.templates import get_environment
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.model.versions import PACKAGE
from fuzzcompile.programs.ir.case_text import extract_case, only_difference
from fuzzcompile.programs.scripts import eager_probe
from fuzzcompile.programs.scripts.clean_process import run_alone
from fuzzcompile.programs.scripts.eager_probe import EagerProbe, Observable, probe_case
from fuzzcompile.programs.scripts.repro_script import ComparedValue, Driving, Form, ScriptPlan
from fuzzcompile.programs.shrink.search import same_bug

# The user's own passes and backend that a reproducer needs to show its bug.

_MARK = "# No part of PyTorch: "


def with_custom(source: str) -> str:
    """Add statements to the case that import and apply the user's own passes and backend of this process.

    Modules are imported from where they are on this machine, unless they are installed. A source that has these
    statements already stays as it is.
    """
    if not has_custom_code() or _MARK in source:
        return source
    passes, backend = list_passes(), describe_backend()
    targets = [*(each.custom.target for each in passes), *([backend] if isinstance(backend, ObjectPath) else [])]
    lines = [f"{_MARK}{', '.join(str(target.name) for target in targets) or backend}.", *_imports(targets)]
    for setting in dict.fromkeys(each.setting for each in passes):
        held = [f"{_expression(each.custom.target)}{each.ending}" for each in passes if each.setting == setting]
        value = held[0] if len(held) == 1 else f"[{', '.join(held)}]"
        lines.append(f"torch._inductor.config.{setting} = {value}")
    if backend is not None:
        lines.append(f"BACKEND = {_expression(backend) if isinstance(backend, ObjectPath) else repr(backend)}")
    return f"{source}\n" + "\n".join(lines) + "\n"


def blames_custom(report: ReportJson) -> bool:
    """Return whether the culprit is one of the user's own passes or backends."""
    return is_custom((report.get("culprit") or {}).get("pass"))


def _imports(targets: list[ObjectPath]) -> Iterator[str]:
    if not targets:
        return
    yield "import importlib"
    roots = list(dict.fromkeys(str(root) for target in targets if (root := find_root(target)) is not None))
    if roots:
        yield "import sys"
    yield "import torch._inductor.config"
    for folder in roots:
        yield f"sys.path.insert(0, {folder!r})"


def _expression(target: ObjectPath) -> str:
    return f'importlib.import_module("{get_module_name(target)}").{target.attribute}'


def find_alias_difference(evidence: OutputJson) -> AliasDifference | None:
    """Return the difference in shared memory that the evidence states, if any."""
    return AliasDifference.parse(str(evidence.get("detail") or "")) if evidence.get("finding") == "alias" else None


# Choose the shortest form of script that shows what a report found.

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


def choose(drive: Driving, report: ReportJson, remark: str = "") -> ScriptPlan:
    """The script for ``report`` on the case of ``drive``.

    It compares the outputs that the evidence calls wrong, the worst first, or without evidence all that the verdict is
    about, up to the length of a readable list.
    """
    verdict = str(report.get("verdict") or "")
    form = _FORMS.get(verdict)
    if form in ("raises", "accepts", "process"):
        return ScriptPlan(drive, form, remark=remark)
    evidence: Sequence[OutputJson] = (report.get("evidence") or {}).get("outputs") or ()
    wrong = _worst_first(_targets_from_evidence(drive.probe, evidence))
    if verdict == Verdict.METADATA:
        return _metadata(drive, wrong, str(report.get("detail") or ""), remark)
    if wrong and all(target.evidence.get("finding") == "alias" for target in wrong):
        shared = _select_fitting(
            [target for target in (_with_partner(drive.probe, target) for target in wrong) if target]
        )
        if shared:
            return ScriptPlan(replace(drive, with_backward=False), "memory", shared, remark=remark)
    targets: Sequence[ComparedValue] = wrong or _targets_from_verdict(drive.probe, verdict)
    if form is None and find_broken_promise(report) is not None:
        form = "integers"  # counts the elements with other bits
    elif form is None:
        hidden = not wrong and bool(evidence) and verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT)
        form, targets = _value_form(drive.probe, targets, hidden=hidden)
    targets = _select_fitting(targets)
    needs_backward = drive.probe.case.backward and any(_shows_after_backward(target.observable) for target in targets)
    return ScriptPlan(replace(drive, with_backward=needs_backward), form, targets, remark=remark)


def _shows_after_backward(observable: Observable) -> bool:
    """Return whether backward alone may make it wrong: a gradient, or the random state that backward may move."""
    return observable.kind == "gradient" or observable.name == RANDOM_STATE


def _targets_from_evidence(probe: EagerProbe, evidence: Sequence[OutputJson]) -> list[ComparedValue]:
    wrong = [entry for entry in evidence if entry.get("finding") not in _HARMLESS]
    named = [_target(probe, str(entry.get("name")), entry) for entry in wrong]
    targets = [target for target in named if target is not None]
    # A wrong value matters more than right values in the wrong memory or layout, and a wrong output explains its
    # gradients.
    targets = [target for target in targets if target.evidence.get("finding") != "alias"] or targets
    targets = [target for target in targets if target.evidence.get("finding") not in _PROPERTY] or targets
    return [target for target in targets if target.observable.kind != "gradient"] or targets


def _targets_from_verdict(probe: EagerProbe, verdict: str) -> list[ComparedValue]:
    kinds = ("gradient",) if verdict == Verdict.WRONG_GRADIENT else ("output", "mutation")
    chosen = [seen for seen in probe.observables.values() if seen.kind in kinds]
    largest = max((seen.largest for seen in chosen), default=0.0)
    if verdict == Verdict.WRONG_GRADIENT:
        chosen = [seen for seen in chosen if seen.largest > _VANISHING * largest]
    named = [_target(probe, seen.name, {}) for seen in chosen]
    return [target for target in named if target is not None]


def _target(probe: EagerProbe, name: str, evidence: OutputJson) -> ComparedValue | None:
    expression = eager_probe.find_expression(name, probe)
    if expression is None:
        return None
    # A mutation by the compiled run alone is missing from the eager run's observables.
    observable = probe.observables.get(name) or Observable(name, "mutation", True, probe.floating_dtype)
    return ComparedValue(observable, expression, evidence)


def _with_partner(probe: EagerProbe, target: ComparedValue) -> ComparedValue | None:
    """The target and a tensor that shares its memory in one of the runs; None if a script cannot name that."""
    difference = find_alias_difference(target.evidence)
    call = ObservableName.parse(target.observable.name).call
    for name in (*difference.gained, *difference.lost) if difference is not None else ():
        leaf = ObservableName.parse(name).leaf
        of_call = leaf is not None and leaf.kind in ("input", "argument")  # an input belongs to the same call
        partner = eager_probe.find_expression(str(ObservableName(name, call)) if of_call else name, probe)
        if partner is not None and eager_probe.is_tensor(target.observable.name, probe):
            return replace(target, partner=partner)
    return None


def _worst_first(targets: list[ComparedValue]) -> list[ComparedValue]:
    def badness(target: ComparedValue) -> float:
        error = target.evidence.get("max_abs_error_compiled")
        if error is None:
            return float("inf")
        return float(error) / (float(target.evidence.get("scale") or 0.0) or 1.0)

    return sorted(targets, key=badness, reverse=True)


def _value_form(
    probe: EagerProbe, targets: Sequence[ComparedValue], *, hidden: bool
) -> tuple[Form, Sequence[ComparedValue]]:
    floating = [target for target in targets if target.observable.floating]
    exact = [target for target in targets if target.evidence.get("finding") == "integer"]
    if exact or not floating:
        objects = [target for target in exact or targets if not target.observable.is_tensor]
        return "integers", [target for target in exact or targets if target not in objects] or objects[:1]
    if hidden and probe.float64:
        return "apart in float64", floating
    return ("values" if probe.float64 else "apart"), floating


def _metadata(drive: Driving, wrong: list[ComparedValue], detail: str, remark: str) -> ScriptPlan:
    whole = "outs" if len(drive.probe.inputs) > 1 else "out"
    structure = ComparedValue(Observable("the result", "output", False), whole)
    named = [target for target in wrong if target.evidence.get("finding") in _PROPERTY]
    if not named and (wrong or " returns " in detail):
        return ScriptPlan(drive, "metadata", (structure,), "structure", remark)
    targets = named or [t for t in _targets_from_verdict(drive.probe, Verdict.METADATA) if t.observable.is_tensor]
    findings = {str(target.evidence.get("finding")) for target in named}
    prop = _PROPERTY[findings.pop()] if len(findings) == 1 else "metadata"
    return ScriptPlan(drive, "metadata", _select_fitting(targets) or (structure,), prop, remark)


def _select_fitting(targets: Sequence[ComparedValue]) -> tuple[ComparedValue, ...]:
    taken: list[ComparedValue] = []
    for target in targets:
        if taken and sum(len(t.expression) + 2 for t in (*taken, target)) > _NAMES_WIDTH:
            break
        taken.append(target)
    return tuple(taken)


_SUMMARY_WIDTH = 110
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
class ReproducerConfirmation:
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
    return write_reproducer(choose_script(source, report, neighbour=neighbour), report)


def choose_script(source: str, report: ReportJson, *, neighbour: str | None = None, custom: bool = True) -> ScriptPlan:
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
        kept = with_custom(extract_case(source)) if custom else extract_case(source)
    except SyntaxError as error:
        raise CaseError(f"The source is no case: it is not valid Python ({error}).") from error
    target = read_target(report)
    device = str(report.get("device") or "cpu") if target is None else "cuda"
    seen = probe_case(kept, _available(device))
    drive = Driving(seen, kept, device, with_backward=seen.case.backward, told=target is not None)
    return choose(drive, report, _remark(kept, neighbour))


def write_reproducer(script: ScriptPlan, report: ReportJson) -> str:
    """The text of the reproducer for a script that was chosen for ``report``."""
    return f'"""{_summary(report, script)}"""\n{script.drive.source}\n{_main_part(script)}'


def confirm_reproducer(source: str, *, timeout: float = 180) -> ReproducerConfirmation:
    """Run a reproducer in a clean process and folder, for at most ``timeout`` seconds.

    It must print its own verdict line, because a traceback ends Python with status 1 too. A bug planted into this
    process is not confirmed: the other process does not have it.
    """
    ran = run_alone(source, timeout=timeout)
    said = any(line.startswith(_BUG) for line in ran.output.splitlines())
    return ReproducerConfirmation(ran.status, ran.output, ran.status == 1 and said)


def confirm_for_target(source: str, report: ReportJson, *, timeout: float = 240) -> ReproducerConfirmation:
    """Judge a reproducer for the target of ``report`` in a clean process: by itself it needs a GPU.

    It must show the bug of ``report``. As for `confirm_reproducer`, a planted bug is not confirmed.
    """
    command = ("-m", "fuzzcompile", "triage", "--json", "--target", read_target(report) or "")
    package = {"PYTHONPATH": str(PACKAGE.parent)}
    ran = run_alone(source, command=command, environment=package, timeout=timeout)
    try:
        reached = json.loads(next((line for line in ran.output.splitlines() if line.startswith("{")), "{}"))
    except json.JSONDecodeError:
        reached = {}
    name = reached.get("signature") or reached.get("verdict") or ran.output
    shows = ran.status == 1 and same_bug(report, reached)
    return ReproducerConfirmation(ran.status, f"triage for {read_target(report)} says {name}\n", shows)


def _main_part(script: ScriptPlan) -> str:
    template = get_environment().get_template("reports/reproducer.py.j2")
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
    return remark if len(remark) <= _SUMMARY_WIDTH else ""


def _summary(report: ReportJson, script: ScriptPlan) -> str:
    """One line: the symptom, the culprit, the version of torch."""
    verdict, where = report.get("verdict"), f"torch {report.get('torch') or torch.__version__}"
    device, target = str(report.get("device") or "cpu"), read_target(report)
    if target is not None:
        where += f" told of {target}, on no GPU"
    elif device != "cpu":
        where += f" on {device.split(':')[0]}"
    phrase = next((text for name, text in _PHRASES.items() if name == verdict), None)
    if script.form == "memory":
        gained = any((d := find_alias_difference(target.evidence)) and d.gained for target in script.targets)
        phrase = "Memory shared that eager does not share" if gained else "A copy where eager shares memory,"
    if phrase is None:
        return _clean(f"Eager and compiled in {where}: {verdict or 'not judged'}.")
    culprit = report.get("culprit") or {}
    names = list(dict.fromkeys(str(culprit[key]) for key in ("rewrite", "pass", "stage") if culprit.get(key)))
    while names:
        fault = names[0] + (f" ({', '.join(reversed(names[1:]))})" if names[1:] else "")
        said = "culprit" if culprit.get("necessary") else "suspect"
        line = _clean(f"{phrase} under torch.compile, {said} {fault}; {where}.".replace(",,", ","))
        if len(line) + 6 <= _SUMMARY_WIDTH or len(names) == 1:
            return line
        names.pop()
    return _clean(f"{phrase} under torch.compile, not attributed; {where}.".replace(",,", ","))


def _clean(text: str) -> str:
    """Text fit for a docstring, without absolute paths."""
    return re.sub(r"(?<!\w)/\S+/", "", " ".join(text.split())).replace("\\", "/").replace('"', "'")
