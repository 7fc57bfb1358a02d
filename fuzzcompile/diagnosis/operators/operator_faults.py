"""Faults of operators that the compiler computes in another way than by their kernels: what parts two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import CompileChange, ContiguousOperands, MetadataFromKernel, Undecomposed
from fuzzcompile.compiler.operators.decompositions import can_take_out
from fuzzcompile.compiler.operators.operator_application import (
    Application,
    OperatorOutcome,
    Outcomes,
    find_fake_function,
)
from fuzzcompile.compiler.watch.compiler_errors import list_raise_frames
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.culprit import Culprit, frames_to_json
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.stages.stage import Found
from fuzzcompile.diagnosis.stages.ways import Pair, PartedStep
from fuzzcompile.model.culprit_contract import AtenKernelJson, DetailsJson, KernelInputJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION
from fuzzcompile.model.thresholds import NOISE_SEEDS, OTHER_NUMBERS, ROUNDING_FACTOR, SEMANTIC_STEP
from fuzzcompile.run import metrics
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.tensors import have_same_values, list_significant_strides

# What is the matter: "check" that the kernel raises and the other way does not, "raises" the reverse; "numbers" that
# both draw from one state and draw other random numbers.
Kind = Literal["values", "numbers", "dtype", "shape", "device", "stride", "alias", "mutation", "check", "raises"]
OperatorStep = PartedStep[Application]


def measure_operator(pair: Pair[Application]) -> OperatorStep | None:
    """Tell an operator that is something else in another way than by its kernel, on the program's own values."""
    application = pair.at
    kernel, other = application.kernel, application.other
    if kernel.error is not None or other.error is not None:
        return _measure_errors(pair)
    fake = application.way == "fake"
    if fake and (written := _find_undeclared_write(application)) is not None:
        return PartedStep(pair, "mutation", None, f"argument {written} as it was", f"argument {written} written to")
    if len(kernel.results) != len(other.results):
        return PartedStep(pair, "shape", None, f"{len(kernel.results)} results", f"{len(other.results)} results")
    kinds: tuple[Kind, ...] = ("shape", "device", "dtype", "alias", "stride")
    forms = {kind: difference for kind in kinds if (difference := find_difference(kind, kernel, other)) is not None}
    if not fake and not forms.keys() & {"shape", "device"}:
        values = _measure_mutations(pair) or _measure_results(pair)
        if values is not None and (values.certain or "dtype" not in forms):
            return values
    kind = next(iter(forms), None)
    return PartedStep(pair, kind, None, *forms[kind]) if kind is not None else None


def word_operator(parting: OperatorStep) -> Found:
    """The operator as a culprit, in the stage that computes it otherwise, and the compile without that."""
    application = parting.pair.at
    fake, error, place = application.way == "fake", application.other.error, application.place
    function = find_fake_function(application.operator) if fake else application.function
    stage, without = DECOMPOSITION, list[CompileChange]()
    if fake:
        stage = FUNCTIONALIZATION if parting.kind == "mutation" else FAKE_TENSOR
        without += [MetadataFromKernel((application.name,))] if stage == FAKE_TENSOR else []
    elif can_take_out():
        without.append(Undecomposed((application.name,)))
    source, line = find_source(function) if function is not None else (None, None)
    details: DetailsJson = {
        "kind": parting.kind,
        "way": application.way,
        "backward": place.backward,
        "inside": list(place.inside),
        "expected": parting.expected,
        "got": parting.got,
    }
    if parting.kind == "raises" and error is not None:
        details["raised"] = frames_to_json(list_raise_frames(error))
    culprit = Culprit.from_operator(stage, application.name, nodes=place.nodes, source=source, line=line)
    culprit = replace(culprit, site=place.site, step=parting.step, details=details)
    return Found(culprit, next(iter(without), None), certain=parting.certain)


def _find_undeclared_write(application: Application) -> int | None:
    """An argument that an operator writes to though its schema says that it writes to none: no tracing can follow."""
    if any(argument.alias_info is not None for argument in application.operator._schema.arguments):
        return None
    initial = pytree.tree_leaves(application.initial_arguments)
    for at, (was, now) in enumerate(zip(initial, application.kernel.arguments, strict=False)):
        tensors = isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor)
        if tensors and was.shape == now.shape and not have_same_values(was, now):
            return at
    return None


def _measure_errors(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    kernel, other = application.kernel.error, application.other.error
    if kernel is not None and other is None:
        # Fake tensors have no values to check.
        told = application.way != "fake" or application.refuses_always()
        return PartedStep(pair, "check", None, describe_error(kernel), "no error") if told else None
    if kernel is not None or other is None or isinstance(other, NotImplementedError):
        return None
    return PartedStep(pair, "raises", None, "no error", describe_error(other))


def describe_error(error: BaseException) -> str:
    """An error's type and first line."""
    return f"{type(error).__name__}: {shorten_message(error)}"


def find_difference(kind: Kind, right: OperatorOutcome, other: OperatorOutcome) -> tuple[str, str] | None:
    """The first result that differs in ``kind`` (no values), as it should be and as it is; None if none does."""
    if kind == "alias":
        differ = right.aliases != other.aliases
        return (_describe_aliases(right), _describe_aliases(other)) if differ else None
    property_of = _PROPERTIES[kind]
    for index, (a, b) in enumerate(zip(right.results, other.results, strict=True)):
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if both and property_of(a) != property_of(b):
            return f"result {index}: {property_of(a)}", f"result {index}: {property_of(b)}"
    return None


_PROPERTIES: dict[Kind, Callable[[torch.Tensor], object]] = {
    "shape": lambda tensor: tuple(int(size) for size in tensor.shape),
    "device": lambda tensor: str(tensor.device),
    "dtype": lambda tensor: str(tensor.dtype),
    "stride": list_significant_strides,
}


def _describe_aliases(outcome: OperatorOutcome) -> str:
    if not outcome.aliases:
        return "shares no memory with its arguments"
    return ", ".join(f"result {i} shares memory with argument {j}" for i, j in sorted(outcome.aliases))


def _measure_mutations(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    step = rounding.largest_change(application.kernel.arguments, application.other.arguments)
    if step and application.operator._schema.is_mutable:
        exact = application.compute_in_float64()
        step = step if exact is None else rounding.largest_change(exact[0].arguments, exact[1].arguments)
        step = step if step > SEMANTIC_STEP else 0.0
    said = "arguments as the kernel leaves them", f"off by {step:.1e}"
    return PartedStep(pair, "mutation", step, *said) if step else None


def _measure_results(pair: Pair[Application]) -> OperatorStep | None:
    application = pair.at
    kernel, other = application.kernel, application.other
    if application.draws:
        # Other random numbers from the same state are a fault only where eager's own are promised.
        step = rounding.largest_change(kernel.results, other.results)
        return PartedStep(pair, "numbers", step, *find_worst_element(kernel, other)) if step > OTHER_NUMBERS else None
    if application.operator._schema.name.rpartition("::")[2] in facts().operators.uninitialised:
        return None  # what was not written is anything
    return measure_outcomes(pair, kernel, other, application.compute_in_float64(), partial(_measure_noise, application))


def measure_outcomes(
    pair: Pair[Any],
    right: OperatorOutcome,
    other: OperatorOutcome,
    exact: Outcomes | None,
    noise: Callable[[Outcomes], float] = lambda _: 0.0,
) -> PartedStep[Any] | None:
    """Tell values that are other ones in one of two ways to compute the same; None where rounding may explain them.

    ``right`` is expected, ``other`` in doubt, and ``exact`` both in float64, if that can be run; ``noise`` says how far
    one ulp of float64 moves these. The step is certain where float64 or exact arithmetic proves it.
    """
    native = rounding.largest_change(right.results, other.results)
    step = 0.0 if exact is None else rounding.largest_change(exact[0].results, exact[1].results)
    if exact is not None and step > SEMANTIC_STEP and rounding.changes_meaning(step, noise(exact)):
        return PartedStep(pair, "values", step, *find_worst_element(*exact))
    if not native:
        return None
    inexact = has_floats([*right.results, *right.arguments])
    if inexact and not _is_far_from(right, other, exact[0] if exact is not None else right):
        return None
    return PartedStep(pair, "values", native, *find_worst_element(right, other), certain=not inexact)


def _measure_noise(application: Application, exact: Outcomes) -> float:
    moved = [run for seed in NOISE_SEEDS if (run := application.compute_in_float64(noise=seed)) is not None]
    pairs = (pair for run in moved for pair in zip(exact, run, strict=True))
    return max((rounding.largest_change(at.results, after.results) for at, after in pairs), default=0.0)


def _is_far_from(kernel: OperatorOutcome, other: OperatorOutcome, exact: OperatorOutcome) -> bool:
    """Return whether a native result is farther from float64 than the kernel's, beyond its dtype's tolerance."""
    for right, value, truth in zip(kernel.results, other.results, exact.results, strict=False):
        comparable = rounding.are_comparable(right, value) and rounding.are_comparable(right, truth)
        if comparable and right.dtype == value.dtype:
            limit = ROUNDING_FACTOR * metrics.largest_distance(right, truth)
            if metrics.largest_distance(value, truth) > limit and not metrics.within_default_tolerance(value, right):
                return True
    return False


def find_worst_element(kernel: OperatorOutcome, other: OperatorOutcome) -> tuple[str, str]:
    """The element that differs most, as it is in both."""
    most, shown = -1.0, ("", "")
    for index, (a, b) in enumerate(zip(kernel.results, other.results, strict=False)):
        if not rounding.are_comparable(a, b) or not a.numel():
            continue
        apart = metrics.distance(a, b)
        if float(apart.max()) > most:
            most = float(apart.max())
            where, values = metrics.find_worst(apart, kernel=a.cpu(), other=b.cpu())
            place = f"result {index}[{', '.join(map(str, where or ()))}]"
            shown = f"{place} = {values['kernel']}", f"{place} = {values['other']}"
    return shown


def has_floats(values: Sequence[Any]) -> bool:
    """Return whether some tensor among the values is floating or complex."""
    return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)


# A kernel that gives other values on operands of one layout than on contiguous copies of them. Where eager mode alone
# hands it such operands, eager mode is wrong and the compiled program right; where only the compiled program does, the
# reverse. Either way the kernel is at fault, not the stage in which both sides part.

Side = Literal["eager", "compiled"]


def measure_layouts(pair: Pair[Application]) -> OperatorStep | None:
    """Tell a kernel that is something else on its operands as they are than on contiguous ones."""
    application = pair.at
    given, plain = application.kernel, application.other
    if plain.error is not None or not ((plain.results and given.results) or given.error):
        return None
    if given.error is not None:
        return PartedStep(pair, "raises", None, "no error", describe_error(given.error))
    floats = [place for place, result in enumerate(plain.results) if has_floats([result])]
    if not floats and has_floats(plain.arguments):
        return None  # an index: of equal values any place may be given
    # Of equal values any place may be given: floating results alone count where there are any.
    kept = floats or range(len(plain.results))

    def keep(outcome: OperatorOutcome) -> OperatorOutcome:
        return replace(outcome, results=tuple(outcome.results[place] for place in kept if place < len(outcome.results)))

    given, plain = keep(given), keep(plain)
    exact = application.compute_in_float64() if rounding.largest_change(given.results, plain.results) else None
    if exact is None:
        return measure_outcomes(pair, plain, given, None)
    noise = partial(_measure_noise, application, exact)
    return measure_outcomes(pair, plain, given, (keep(exact[1]), keep(exact[0])), lambda _: noise())


def word_kernel(stage: str, wrong_in: Side, parting: OperatorStep) -> Found:
    """The kernel as a culprit of the stage in which both sides part, with its call as Python."""
    application, inputs = parting.pair.at, list[KernelInputJson]()

    def name_input(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(_describe_input(value))
        return _InputName(f"inputs[{len(inputs) - 1}]")

    args, kwargs = pytree.tree_map(name_input, application.initial_arguments)
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    kernel: AtenKernelJson = {
        "operator": application.name,
        "call": f"torch.ops.{application.name}({', '.join(parts)})",
        "inputs": inputs,
        "differs_by": parting.step,
        "wrong_in": wrong_in,
    }
    found = word_operator(parting)
    details: DetailsJson = {**found.culprit.details, "aten_kernel": kernel}
    culprit = replace(found.culprit, stage=stage, source=None, line=None, confidence="low", details=details)
    return Found(culprit, ContiguousOperands((application.name,)), certain=parting.certain)


class _InputName:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _describe_input(tensor: torch.Tensor) -> KernelInputJson:
    described: KernelInputJson = {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel():
        described["below"] = int(tensor.max()) + 1
    return described
