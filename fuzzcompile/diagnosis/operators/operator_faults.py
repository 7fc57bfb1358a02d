"""Faults of operators that the compiler computes in another way than by their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack

import torch

from fuzzcompile.compiler.operators.decompositions import format_operator
from fuzzcompile.compiler.operators.fake_tensors import find_fake_function
from fuzzcompile.compiler.operators.operator_application import Application, OperatorOutcome, OperatorPlace
from fuzzcompile.compiler.watch.compiler_errors import list_raise_frames
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.culprit import Culprit, Proof, frames_to_json
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION
from fuzzcompile.model.thresholds import NOISE_SEEDS, OTHER_NUMBERS, ROUNDING_FACTOR, SEMANTIC_STEP
from fuzzcompile.run import metrics
from fuzzcompile.run.device import shorten_message
from fuzzcompile.run.tensors import have_same_values, list_significant_strides

# What is the matter: "check" that the kernel raises and the other way does not, "raises" the reverse; "numbers" that
# both draw from one state and draw other random numbers.
Kind = Literal["values", "numbers", "dtype", "shape", "device", "stride", "alias", "mutation", "check", "raises"]
_SIZES: tuple[Kind, ...] = ("shape", "device")
_LAYOUTS: tuple[Kind, ...] = ("alias", "stride")


@dataclass(frozen=True)
class Fault:
    """One operator that is something else before the graph passes than in eager mode, on the program's own values.

    ``proved`` says that float64, exact arithmetic or the kind of fault leave no room for rounding. ``step`` is the
    change in units of the RMS size of the result, in float64 where ``proved``. ``raised`` is where in the compiler the
    error of a fault that raises rose: file, line and function, innermost first.
    """

    stage: str
    way: str
    operator: str
    kind: Kind
    place: OperatorPlace
    proved: bool
    step: float | None = None
    expected: str = ""
    got: str = ""
    source: str | None = None
    line: int | None = None
    raised: tuple[tuple[str, int, str], ...] = ()

    @property
    def site(self) -> str | None:
        """``file.py:line #n`` of the user's program."""
        return f"{self.place.location} #{self.place.ordinal}" if self.place.location else None

    def culprit(self, **proof: Unpack[Proof]) -> Culprit:
        """The operator as a culprit; its family is its name without namespace and overload."""
        details: DetailsJson = {
            "kind": self.kind,
            "way": self.way,
            "backward": self.place.backward,
            "inside": list(self.place.inside),
            "expected": self.expected,
            "got": self.got,
        }
        if self.raised:
            details["raised"] = frames_to_json(self.raised)
        return Culprit.from_operator(
            self.stage,
            self.operator,
            nodes=(self.place.node,) if self.place.node else (),
            source=self.source,
            line=self.line,
            site=self.site,
            step=self.step,
            details=details,
            **proof,
        )


def find_fault(application: Application) -> Fault | None:
    """Find the fault in one application of an operator; None if there is none."""
    kernel, substitute = application.kernel, application.other
    if kernel.error is not None or substitute.error is not None:
        return _compare_errors(application)
    if application.way == "fake" and (written := _find_undeclared_write(application)) is not None:
        return written
    if len(kernel.results) != len(substitute.results):
        return _make_fault(application, "shape", f"{len(kernel.results)} results", f"{len(substitute.results)} results")
    for kind in _SIZES:
        difference = find_difference(kind, kernel, substitute)
        if difference is not None:
            return _make_fault(application, kind, *difference)
    dtypes = find_difference("dtype", kernel, substitute)
    if application.way != "fake":
        wrong = _compare_mutations(application) or _compare_values(application)
        if wrong is not None and (wrong.proved or dtypes is None):
            return wrong
    if dtypes is not None:
        return _make_fault(application, "dtype", *dtypes)
    for kind in _LAYOUTS:
        difference = find_difference(kind, kernel, substitute)
        if difference is not None:
            return _make_fault(application, kind, *difference)
    return None


def _make_fault(
    application: Application, kind: Kind, expected: str, got: str, *, step: float | None = None, proved: bool = True
) -> Fault:
    function = find_fake_function(application.operator) if application.way == "fake" else application.function
    source, line = find_source(function) if function is not None else (None, None)
    stage = FAKE_TENSOR if application.way == "fake" else DECOMPOSITION
    name = format_operator(application.operator)
    return Fault(stage, application.way, name, kind, application.place, proved, step, expected, got, source, line)


def _find_undeclared_write(application: Application) -> Fault | None:
    """An operator that writes to an argument of which its schema says that it does not: no tracing can follow that."""
    schema = application.operator._schema
    if any(argument.alias_info is not None for argument in schema.arguments):
        return None
    for index, (before, after) in enumerate(application.pair_arguments()):
        if before.shape == after.shape and not have_same_values(before, after):
            fault = _make_fault(application, "mutation", f"argument {index} as it was", f"argument {index} written to")
            return replace(fault, stage=FUNCTIONALIZATION)
    return None


def _compare_errors(application: Application) -> Fault | None:
    kernel, substitute = application.kernel.error, application.other.error
    if kernel is not None and substitute is not None:
        return None
    if kernel is not None:
        if application.way == "fake" and not application.refuses_always():
            return None  # fake tensors have no values to check
        return _make_fault(application, "check", describe_error(kernel), "no error")
    assert substitute is not None
    if isinstance(substitute, NotImplementedError):
        return None
    fault = _make_fault(application, "raises", "no error", describe_error(substitute))
    return replace(fault, raised=list_raise_frames(substitute))


def describe_error(error: BaseException) -> str:
    """An error's type and first line."""
    return f"{type(error).__name__}: {shorten_message(error)}"


def find_difference(kind: Kind, right: OperatorOutcome, substitute: OperatorOutcome) -> tuple[str, str] | None:
    """The first result that differs in ``kind`` (no values), as it should be and as it is; None if none does."""
    if kind == "alias":
        differ = right.aliases != substitute.aliases
        return (_describe_aliases(right), _describe_aliases(substitute)) if differ else None
    property_of = _PROPERTIES[kind]
    for index, (a, b) in enumerate(zip(right.results, substitute.results, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if property_of(a) != property_of(b):
            return f"result {index}: {property_of(a)}", f"result {index}: {property_of(b)}"
    return None


def _get_dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype)


def _get_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)


def _get_device(tensor: torch.Tensor) -> str:
    return str(tensor.device)


_PROPERTIES: dict[Kind, Callable[[torch.Tensor], object]] = {
    "shape": _get_shape,
    "device": _get_device,
    "dtype": _get_dtype,
    "stride": list_significant_strides,
}


def _describe_aliases(outcome: OperatorOutcome) -> str:
    if not outcome.aliases:
        return "shares no memory with its arguments"
    return ", ".join(f"result {i} shares memory with argument {j}" for i, j in sorted(outcome.aliases))


def _compare_mutations(application: Application) -> Fault | None:
    """Arguments that one way writes to and the other does not, or differently."""
    step = rounding.largest_change(application.kernel.arguments, application.other.arguments)
    if not step:
        return None
    if application.operator._schema.is_mutable:
        exact = application.compute_in_float64()
        step = step if exact is None else rounding.largest_change(exact[0].arguments, exact[1].arguments)
        if step <= SEMANTIC_STEP:
            return None
    return _make_fault(application, "mutation", "arguments as the kernel leaves them", f"off by {step:.1e}", step=step)


def _compare_values(application: Application) -> Fault | None:
    kernel, substitute = application.kernel, application.other
    if application.draws:
        return _compare_random_numbers(application)
    if application.operator._schema.name.rpartition("::")[2] in facts().operators.uninitialised:
        return None  # what was not written is anything
    wrong = find_wrong_values(kernel, substitute, application.compute_in_float64(), partial(measure_noise, application))
    if wrong is None:
        return None
    expected, got, step, proved = wrong
    return _make_fault(application, "values", expected, got, step=step, proved=proved)


Outcomes = tuple[OperatorOutcome, OperatorOutcome]


def find_wrong_values(
    right: OperatorOutcome,
    other: OperatorOutcome,
    exact: Outcomes | None,
    noise: Callable[[Outcomes], float] = lambda _: 0.0,
) -> tuple[str, str, float, bool] | None:
    """Find values that are other ones in one of two ways to compute the same; None where rounding may explain them.

    Args:
        right: what is expected.
        other: what is in doubt.
        exact: both in float64; None if that cannot be run.
        noise: how far one ulp of float64 moves these; asked where they are apart.

    Returns:
        The element that differs most as expected and as it is, the change in units of the RMS size, and whether
        float64 or exact arithmetic proves it.
    """
    native = rounding.largest_change(right.results, other.results)
    step = 0.0 if exact is None else rounding.largest_change(exact[0].results, exact[1].results)
    if exact is not None and step > SEMANTIC_STEP and rounding.changes_meaning(step, noise(exact)):
        return *find_worst_element(*exact), step, True
    if not native:
        return None
    inexact = has_floats([*right.results, *right.arguments])
    if inexact and not is_far_from(right, other, exact[0] if exact is not None else None):
        return None
    return *find_worst_element(right, other), native, not inexact


def _compare_random_numbers(application: Application) -> Fault | None:
    """Other random numbers from the same state, which is a fault only where eager's own are promised."""
    step = rounding.largest_change(application.kernel.results, application.other.results)
    if not step or step <= OTHER_NUMBERS:
        return None
    return _make_fault(application, "numbers", *find_worst_element(application.kernel, application.other), step=step)


def measure_noise(application: Application, exact: tuple[OperatorOutcome, OperatorOutcome]) -> float:
    """Measure how far one ulp of float64 in the arguments moves either result."""
    most = 0.0
    for seed in NOISE_SEEDS:
        moved = application.compute_in_float64(noise=seed)
        if moved is None:
            continue
        moves = (rounding.largest_change(at.results, after.results) for at, after in zip(exact, moved, strict=True))
        most = max(most, *moves)
    return most


def is_far_from(kernel: OperatorOutcome, substitute: OperatorOutcome, exact: OperatorOutcome | None) -> bool:
    """Return whether a native result is farther from float64 than the kernel's, beyond its dtype's tolerance."""
    truths = exact.results if exact is not None else kernel.results
    for right, value, truth in zip(kernel.results, substitute.results, truths, strict=False):
        if (
            not rounding.are_comparable(right, value)
            or not rounding.are_comparable(right, truth)
            or right.dtype != value.dtype
        ):
            continue
        apart = metrics.largest_distance(value, truth)
        if apart > ROUNDING_FACTOR * metrics.largest_distance(right, truth) and not metrics.within_default_tolerance(
            value, right
        ):
            return True
    return False


def find_worst_element(kernel: OperatorOutcome, substitute: OperatorOutcome) -> tuple[str, str]:
    """The element that differs most, as it is in both."""
    most, shown = -1.0, ("", "")
    for index, (a, b) in enumerate(zip(kernel.results, substitute.results, strict=False)):
        if not rounding.are_comparable(a, b) or not a.numel():
            continue
        apart = metrics.distance(a, b)
        if float(apart.max()) > most:
            most = float(apart.max())
            where, values = metrics.find_worst(apart, kernel=a.cpu(), substitute=b.cpu())
            place = f"result {index}[{', '.join(map(str, where or ()))}]"
            shown = f"{place} = {values['kernel']}", f"{place} = {values['substitute']}"
    return shown


def has_floats(values: Sequence[Any]) -> bool:
    """Return whether some tensor among the values is floating or complex."""
    return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)
