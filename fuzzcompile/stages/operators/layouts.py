"""ATen kernels that give other values on operands of one layout than on contiguous copies of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.compiler.applications import Application, Outcome
from fuzzcompile.compiler.aten_kernels import CONTIGUOUS
from fuzzcompile.compiler.decompositions import operator_name
from fuzzcompile.oracle import change
from fuzzcompile.stage_names import DECOMPOSITION
from fuzzcompile.stages.operators.faults import Fault, described_error, far_from, has_floats, noise_of, worst_of

Side = Literal["eager", "compiled"]


@dataclass(frozen=True)
class KernelFault:
    """Kernel that gives other values on operands of one layout than on contiguous copies of them.

    Where eager mode alone hands it such operands, eager mode is wrong and the compiled program right; where only the
    compiled program does, the reverse. Either way the kernel is at fault, not the stage in which both sides part.

    Attributes:
        fault: where, and what is the matter.
        wrong_in: the side that hands it such operands.
        call: the call as Python, its tensors as ``inputs[0]`` and so on.
        inputs: shape, stride and dtype of each tensor, and for integers the least bound on their values.
    """

    fault: Fault
    wrong_in: Side
    call: str
    inputs: tuple[dict[str, Any], ...]

    @property
    def operator(self) -> str:
        """Name and overload of the operator."""
        return self.fault.operator

    def in_stage(self, stage: str) -> KernelFault:
        """The same fault, seen in a stage: where the two sides part."""
        return replace(self, fault=replace(self.fault, stage=stage))

    def culprit(self) -> Culprit:
        """The operator as a culprit of which nothing is proved."""
        culprit = self.fault.culprit(confidence="low")
        kernel = {
            "operator": self.fault.operator,
            "call": self.call,
            "inputs": list(self.inputs),
            "differs_by": self.fault.step,
            "wrong_in": self.wrong_in,
        }
        return replace(culprit, details={**culprit.details, "aten_kernel": kernel})


def kernel_fault_of(application: Application, side: Side) -> KernelFault | None:
    """Find the fault of a kernel on operands as they are, compared with contiguous ones; None if there is none.

    Args:
        application: both ways, that on contiguous operands the second.
        side: which hands it such operands.
    """
    matter = _matter(application)
    if matter is None:
        return None
    kind, expected, got, step, proved = matter
    name = operator_name(application.operator)
    fault = Fault(DECOMPOSITION, CONTIGUOUS, name, kind, application.place, proved, step, expected, got)
    return KernelFault(fault, side, *_call_of(application))


_Matter = tuple[Literal["values", "raises"], str, str, float | None, bool]


def _matter(application: Application) -> _Matter | None:
    """The kind of fault, what is expected, what is got, by how much, and whether rounding is ruled out."""
    given, plain = application.kernel, application.other
    if plain.error is not None or not ((plain.results and given.results) or given.error):
        return None
    if given.error is not None:
        return "raises", "no error", described_error(given.error), None, True
    if not any(map(_is_float, plain.results)) and has_floats(plain.arguments):
        return None  # an index: of equal values any place may be given
    native = change.largest_change(*_paired(given, plain))
    exact = application.exact() if native else None
    step = change.largest_change(*_paired(*exact)) if exact is not None else 0.0
    if exact is not None and step > change.SEMANTIC_STEP and change.changes_meaning(step, noise_of(application, exact)):
        got, expected = worst_of(*exact)
        return "values", expected, got, step, True
    floating = has_floats(plain.results)
    if native and (not floating or far_from(plain, given, exact[1] if exact is not None else None)):
        got, expected = worst_of(given, plain)
        return "values", expected, got, native, not floating
    return None


def _paired(given: Outcome, plain: Outcome) -> tuple[list[object], list[object]]:
    """The results of both, the floating ones alone where there are any: of equal values any place may be given."""
    pairs = list(zip(given.results, plain.results, strict=False))
    pairs = [pair for pair in pairs if _is_float(pair[1])] or pairs
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _is_float(value: object) -> bool:
    return has_floats([value])


def _call_of(application: Application) -> tuple[str, tuple[dict[str, Any], ...]]:
    """The call as Python, and its tensors."""
    inputs: list[dict[str, Any]] = []

    def shown(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(_described(value))
        return _Name(f"inputs[{len(inputs) - 1}]")

    args, kwargs = pytree.tree_map(shown, application.given)
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"torch.ops.{operator_name(application.operator)}({', '.join(parts)})", tuple(inputs)


class _Name:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    described: dict[str, Any] = {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel():
        described["below"] = int(tensor.max()) + 1
    return described
