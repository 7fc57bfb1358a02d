"""The plan of a script: its case, run in eager mode, the form in which it shows a bug, the values that it compares."""

from __future__ import annotations

import inspect
import math
import re
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.model.contract import OutputJson, ReportJson, find_broken_promise
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.evidence import EFFECT, RANDOM_STATE, AliasDifference, LeafName, ObservableName
from fuzzcompile.model.verdicts import AGREEING, FORMS, Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import metrics, runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.ranks import leave_group
from fuzzcompile.run.tensors import find_aliases, is_inexact, is_wrapped, list_tensors

# Eager runs of a case, which decide how short its script can be.

# A plain float64 run farther than this share from eager is no reference for it.
_SAME_PROGRAM = 0.1


@dataclass(frozen=True)
class Observable:
    """One observable value of an eager run. ``largest`` is its largest finite absolute value."""

    name: str
    kind: str
    is_tensor: bool
    dtype: torch.dtype | None = None
    largest: float = 0.0

    @property
    def floating(self) -> bool:
        """Return whether rounding can touch it."""
        return self.dtype is not None and is_inexact(self.dtype)


@dataclass(frozen=True)
class EagerProbe:
    """The eager run of a case.

    ``inputs`` and ``outputs`` are the real objects, one for each call: expressions follow their structure.
    ``repeatable``: a second forward run on the same model and inputs gives the same. ``float64``: the program runs
    unchanged on float64 parameters and inputs, and is the same program there. ``nonfinite``: its result holds NaN or
    infinity.
    """

    case: Case
    model: Callable[..., object]
    inputs: Sequence[object]
    outputs: Sequence[object]
    observables: Mapping[str, Observable]
    repeatable: bool
    random: bool
    float64: bool
    nonfinite: bool

    @property
    def is_module(self) -> bool:
        """Return whether the program is a module, which holds parameters that can be converted."""
        return isinstance(self.model, nn.Module)

    @property
    def star(self) -> str:
        """The stars before the inputs in a call of the program."""
        return "**" if isinstance(self.inputs[0], dict) else "*" if isinstance(self.inputs[0], tuple) else ""

    @property
    def tensor_inputs(self) -> list[torch.Tensor]:
        """The tensors among the inputs of all calls."""
        return list(list_tensors(list(self.inputs)))


def probe_case(source: str, device: torch.device) -> EagerProbe:
    """Run the case eagerly, twice on the same state and once in float64.

    The probe of a case that raises in eager covers the part that ran. The global random state is left as it was.
    CaseError if the source is no case.
    """
    with torch.random.fork_rng(), tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "case.py")
        path.write_text(source, encoding="utf-8")
        try:
            return run_probe(load_case(path), device)
        finally:
            leave_group()


def run_probe(case: Case, device: torch.device, *, together: bool = False) -> EagerProbe:
    """Make the runs of :func:`probe_case`; ``together``: as one of several processes that all make them."""
    outputs: list[object] = []

    def run(model: Callable[..., object], arguments: object) -> object:
        outputs.append(runs.drive(case, model, arguments))
        return outputs[-1]

    recorded = replace(case, run=run)
    program = build(recorded, device)
    first = runs.observe(recorded, program, program.model)
    seen, states = tuple(outputs), _read_generators()
    runs.seed_run(case)
    moved = any(not torch.equal(*pair) for pair in zip(states, _read_generators(), strict=True))
    random = moved and first.failure is None
    repeatable = first.failure is None and not random and not any(value.kind == "mutation" for value in first.values)
    if repeatable:
        repeatable = _has_repeated(first, runs.observe(replace(recorded, backward=False), program, program.model))
    # Modules that several processes run are not made for parameters that are converted.
    exact = None if first.failure or together else _in_float64(case, device)
    wide = exact.index_by_name() if exact is not None else {}
    compared = [value for value in first.values if value.kind != "gradient"]
    held = pytree.tree_leaves([value.value for value in (*first.values, *(exact.values if exact is not None else ()))])
    return EagerProbe(
        case=case,
        model=program.model,
        inputs=program.calls,
        outputs=seen,
        observables={value.name: _observable(value) for value in first.values},
        repeatable=repeatable,
        random=random,
        float64=exact is not None and all(_near(value, wide.get(value.name)) for value in compared),
        nonfinite=any(isinstance(leaf, torch.Tensor) and not bool(torch.isfinite(leaf).all()) for leaf in held),
    )


def _has_repeated(first: Observation, again: Observation) -> bool:
    values = [value for value in first.values if value.kind != "gradient"]  # gradients add up from run to run
    if again.failure or len(values) != len(again.values):
        return False
    pairs = [(a.value, b.value) for a, b in zip(values, again.values, strict=True) if a.is_tensor]
    return all(
        isinstance(b, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype) and metrics.have_same_values(a, b)
        for a, b in pairs
    )


def _read_generators() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _in_float64(case: Case, device: torch.device) -> Observation | None:
    program = build(case, device, double=True)
    # A script would need more than a line to convert these; tensors converted one by one no longer share memory.
    wrapped = any(is_wrapped(leaf) for leaf in pytree.tree_leaves(list(program.calls)))
    if wrapped or any(tensor.is_complex() for tensor in list_tensors(program.calls)):
        return None
    if any(find_aliases({str(n): x for n, x in enumerate(list_tensors([call]))}) for call in program.calls):
        return None
    reached = [*program.find_state().tensors.values(), *list_tensors(program.calls)]
    # A script leaves the default dtype as it is.
    observation = runs.observe(case, replace(program, double=False), program.model)
    is_converted = any(tensor.is_floating_point() for tensor in reached)
    return observation if is_converted and not observation.failure else None


def _near(eager: Value, exact: Value | None) -> bool:
    """Return whether a value is, up to rounding, that of the run in float64."""
    if exact is None or not eager.is_tensor or not exact.is_tensor:
        return exact is not None and eager.is_tensor == exact.is_tensor
    if eager.value.shape != exact.value.shape or exact.value.is_complex():
        return False
    if not eager.value.is_floating_point():
        return True
    apart = metrics.rms(metrics.distance(eager.value, exact.value))
    return apart <= _SAME_PROGRAM * max(metrics.rms(metrics.widen(exact.value)), 1e-300)


def _observable(value: Value) -> Observable:
    if not value.is_tensor:
        return Observable(value.name, value.kind, False)
    wide = metrics.widen(value.value).abs()
    return Observable(value.name, value.kind, True, value.value.dtype, metrics.largest(wide[torch.isfinite(wide)]))


# Python expressions for the observables of a run: outputs, inputs, gradients, mutated state.


def find_expression(name: str, probe: EagerProbe) -> str | None:
    """The expression by which a script reaches the observable ``name`` after its calls; None if it cannot.

    With one call the script has ``model``, ``inputs`` and ``out``; with several ``calls`` and ``outs``.
    """
    if name == RANDOM_STATE:
        return "torch.get_rng_state()"
    observable = ObservableName.parse(name)
    leaf = observable.leaf
    reached = _of_call(leaf, observable.call or 0, probe) if leaf is not None else _held(observable, probe.model)
    if reached and observable.derivative == "tangent":
        return f"torch.autograd.forward_ad.unpack_dual({reached}).tangent"
    return f"{reached}.grad" if reached and observable.derivative else reached


def is_tensor(name: str, probe: EagerProbe) -> bool:
    """Return whether the observable ``name`` is a tensor in the program too, not a NumPy array compared as one."""
    observable = ObservableName.parse(name)
    leaf = observable.leaf
    if leaf is None or leaf.kind != "out":
        return True
    leaves = pytree.tree_leaves(probe.outputs[observable.call or 0])
    return not leaf.path and isinstance(leaves[leaf.index], torch.Tensor)


def _of_call(leaf: LeafName, call: int, probe: EagerProbe) -> str | None:
    """An output or an input of a call; the leaf's ``path`` leads into a dataclass or the like."""
    of_output = leaf.kind == "out"
    trees, names = (probe.outputs, ("out", "outs")) if of_output else (probe.inputs, ("inputs", "calls"))
    if call >= len(trees):
        return None
    base = f"{names[1]}[{call}]" if len(probe.inputs) > 1 else names[0]
    leaves = pytree.tree_leaves(trees[call])
    # Of inputs only tensors are counted.
    places = [n for n, value in enumerate(leaves) if leaf.kind != "input" or isinstance(value, torch.Tensor)]
    inner = _within(leaves[places[leaf.index]], leaf.path) if leaf.index < len(places) else None
    return None if inner is None else _find_leaf(base, trees[call], places[leaf.index]) + inner


def _within(value: object, path: Sequence[str]) -> str | None:
    """The attributes and indices that lead along ``path`` into a value; None if it has no such part."""
    written = ""
    for part in path:
        listed = re.fullmatch(r"([A-Za-z_]\w*?)(\d+)", part)  # a field that holds a list: its name and a number
        if part.isidentifier() and hasattr(value, part):
            value, step = getattr(value, part), f".{part}"
        elif isinstance(value, Mapping) and part in value:
            value, step = value[part], f'["{part}"]'
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value, step = value[int(part)], f"[{part}]"
        elif listed and isinstance(getattr(value, listed[1], None), list | tuple):
            value, step = getattr(value, listed[1])[int(listed[2])], f".{listed[1]}[{listed[2]}]"
        else:
            return None
        written += step
    return written


def _find_leaf(base: str, tree: object, index: int) -> str:
    if pytree.tree_structure(tree) == pytree.tree_structure(0):
        return base
    flat = is_flat(tree)
    if flat and isinstance(tree, dict):
        return f"{base}[{list(tree)[index]!r}]".replace("'", '"')
    return f"{base}[{index}]" if flat else f"tree_leaves({base})[{index}]"


def is_flat(tree: object) -> bool:
    """Return whether the tree is a tuple, a list or a dictionary by name with no further containers in it."""
    if type(tree) is dict:
        values: Iterable[object] = tree.values() if all(isinstance(key, str) for key in tree) else [tree]
    else:
        values = tree if isinstance(tree, tuple | list) and type(tree) in (tuple, list) else [[tree]]
    return all(pytree.tree_structure(value) == pytree.tree_structure(0) for value in values)


# How what a call leaves in a container is told: its length, its keys in their order, its members; and an item of one.
_TOLD = re.compile(r"(len|list|set)\(([^()]+)\)")
_PLACE, _ITEM = re.compile(r"[\w.]+(\['\w+'\]|\[\d+\])*"), re.compile(r"\['?(\w+)'?\]")


def _held(observable: ObservableName, model: object) -> str | None:
    """What the program's objects hold after its calls: a tensor, an attribute, an item, the length of a container."""
    if not observable.is_effect:
        kind, _, path = observable.what.partition(" ")
        return _state(kind, path, model=model)
    path = observable.what.removeprefix(EFFECT)
    told = _TOLD.fullmatch(path)
    place = told[2] if told is not None else path
    reached = None if _PLACE.fullmatch(place) is None else _state("attribute", _ITEM.sub(r".\1", place), model=model)
    return f"{told[1]}({reached})" if reached is not None and told is not None else reached


def _state(kind: str, path: str, *, model: object) -> str | None:
    if kind not in ("parameter", "buffer", "tensor", "attribute"):
        return None
    parts = path.split(".")
    if isinstance(model, nn.Module):
        if kind in ("parameter", "buffer") and not all(part.isidentifier() for part in parts):
            return f'model.get_{kind}("{path}")'
        inner = _within(model, parts)
        if inner is not None:
            return f"model{inner}"
    function = getattr(type(model), "forward", None) if isinstance(model, nn.Module) else model
    if not isinstance(function, types.FunctionType):
        return None
    variables = inspect.getclosurevars(function)
    for names, where in ((variables.nonlocals, "inspect.getclosurevars(model).nonlocals"), (variables.globals, "")):
        inner = _within(names.get(parts[0]), parts[1:])
        if parts[0] in names and inner is not None and not (where and function is not model):
            return (f'{where}["{parts[0]}"]' if where else parts[0]) + inner
    return None


# The plan.

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

    @property
    def kind(self) -> str:
        """Return the kind of value that a script compares: a result, its gradient, or state after a call."""
        if self.expression.endswith(".grad"):
            return "gradient"
        return "output" if self.expression.startswith("out") else self.observable.kind


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
    nproc: int = 1  # processes that run it together
    form: Form = "values"
    targets: tuple[ComparedValue, ...] = ()
    property_name: str = ""
    with_backward: bool = False
    remark: str = ""
    eager_is_wrong: bool = False  # the compiled program in float64 is the reference then
    is_stale: bool = False  # each side starts from what make() makes

    @property
    def wrong_side(self) -> str:
        """The run that is wrong: ``eager`` or ``compiled``."""
        return "eager" if self.eager_is_wrong else "compiled"

    @property
    def right_side(self) -> str:
        """The other one, whose error is rounding."""
        return "compiled" if self.eager_is_wrong else "eager"

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
        return f"{factor:g} * error_{self.right_side}" + (
            f" + {format_number(share)} * {self._largest('exact')}" if share else ""
        )

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

_FORMS: dict[str, Form] = {
    Verdict.COMPILE_ERROR: "raises",
    Verdict.RUNTIME_ERROR: "raises",
    Verdict.ACCEPTS_INVALID: "accepts",
    Verdict.NONDETERMINISTIC: "nondeterministic",
    Verdict.CRASH: "process",
    Verdict.TIMEOUT: "process",
}
_PROPERTY: dict[str, str] = {**{finding: finding for finding in FORMS}, "stride": "strides"}
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
    compared = [_of_any_rank(entry) for entry in (report.get("evidence") or {}).get("outputs") or ()]
    form = "raises" if read_details(report.get("culprit")).get("raises") else _FORMS.get(verdict)
    plan = replace(plan, eager_is_wrong=verdict == Verdict.EAGER_WRONG, is_stale=verdict == Verdict.STALE)
    if form in ("raises", "accepts", "process"):
        return replace(plan, form=form, with_backward=probe.case.backward)
    found = sorted(_targets_from_evidence(probe, compared), key=_badness, reverse=True)
    # The same of several processes is one expression.
    wrong = [target for n, target in enumerate(found) if target.expression not in {t.expression for t in found[:n]}]
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
        hidden = not wrong and bool(compared) and verdict in (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT)
        form, targets = _choose_value_form(probe, targets, hidden=hidden)
    targets = _select_fitting(targets)
    # Backward alone may make a gradient wrong, or move the random state.
    after = any(t.observable.kind == "gradient" or t.observable.name == RANDOM_STATE for t in targets)
    return replace(plan, form=form, targets=targets, with_backward=probe.case.backward and after)


def _of_any_rank(entry: OutputJson) -> OutputJson:
    """The evidence on a value of a process, by the name that the value has in all of them."""
    return {**entry, "name": str(replace(ObservableName.parse(str(entry.get("name"))), rank=None))}


def _targets_from_evidence(probe: EagerProbe, evidence: Sequence[OutputJson]) -> list[ComparedValue]:
    wrong = [entry for entry in evidence if entry.get("finding") not in AGREEING]
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
    expression = find_expression(name, probe)
    # A mutation by the compiled run alone is missing from the eager run's observables.
    usual = next((x.dtype for x in probe.tensor_inputs if x.is_floating_point()), torch.float32)
    observable = probe.observables.get(name) or Observable(name, "mutation", True, usual)
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
        partner = find_expression(str(ObservableName(other, call)) if of_call else other, probe)
        if partner is not None and is_tensor(name, probe):
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
