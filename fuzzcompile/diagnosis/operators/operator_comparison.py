"""Comparison of operators with what the compiler takes in their place, on the program's own values and layouts."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.decompositions import apply_config, format_operator
from fuzzcompile.compiler.operators.operator_application import CONTIGUOUS, Application, OperatorOutcome
from fuzzcompile.compiler.operators.operator_crossref import CrossrefRun, watch_operators, watch_program
from fuzzcompile.compiler.watch.ledger import Frame, Ledger
from fuzzcompile.compiler.watch.recorder import CAPTURED_CALLS
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs, list_placeholders
from fuzzcompile.diagnosis.operators.operator_faults import (
    Fault,
    describe_error,
    find_fault,
    find_wrong_values,
    has_floats,
    measure_noise,
)
from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.culprit_contract import AtenKernelJson, KernelInputJson
from fuzzcompile.model.stages import DECOMPOSITION, JOINT_GRAPH, PRE_GRAD
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build

# The line of the user's program that is under way.

# Files between a call in the program and what sees it.
_BETWEEN = (
    "torch/overrides.py",
    "torch/_tensor.py",
    "torch/_ops.py",
    "torch/utils/",
    "torch/_jit_internal.py",
    "torch/_compile.py",
    "torch/_dynamo/",
    "torch/_decomp/",
    "torch/_refs/",
    "torch/_prims",
)
_OURS = __name__.partition(".")[0]
# Modules of ours that stand between a call and the program say so themselves.
__watches_calls__ = True


def iter_program_lines() -> Iterator[str]:
    """``file.py:line`` of the callers under way, innermost first, as dynamo gives them: modules of torch included.

    Ends where our own code drives the program. A module of ours whose frames stand between the program and what asks
    for its line has a global ``__watches_calls__``.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, module = Path(frame.f_code.co_filename).as_posix(), frame.f_globals
        if not module.get("__watches_calls__") and not any(part in path for part in _BETWEEN):
            if str(module.get("__name__")).partition(".")[0] == _OURS:
                return
            yield f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]


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
    inputs: tuple[KernelInputJson, ...]

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
        kernel: AtenKernelJson = {
            "operator": self.fault.operator,
            "call": self.call,
            "inputs": list(self.inputs),
            "differs_by": self.fault.step,
            "wrong_in": self.wrong_in,
        }
        return replace(culprit, details={**culprit.details, "aten_kernel": kernel})


def find_kernel_fault(application: Application, side: Side) -> KernelFault | None:
    """Find the fault of a kernel on operands as they are, compared with contiguous ones; None if there is none.

    Args:
        application: both ways, that on contiguous operands the second.
        side: which hands it such operands.
    """
    matter = _find_matter(application)
    if matter is None:
        return None
    kind, expected, got, step, proved = matter
    name = format_operator(application.operator)
    fault = Fault(DECOMPOSITION, CONTIGUOUS, name, kind, application.place, proved, step, expected, got)
    return KernelFault(fault, side, *_format_call(application))


_Matter = tuple[Literal["values", "raises"], str, str, float | None, bool]


def _find_matter(application: Application) -> _Matter | None:
    """The kind of fault, what is expected, what is got, by how much, and whether rounding is ruled out."""
    given, plain = application.kernel, application.other
    if plain.error is not None or not ((plain.results and given.results) or given.error):
        return None
    if given.error is not None:
        return "raises", "no error", describe_error(given.error), None, True
    if not any(map(_is_float, plain.results)) and has_floats(plain.arguments):
        return None  # an index: of equal values any place may be given
    # Of equal values any place may be given: floating results alone count where there are any.
    kept = [place for place, result in enumerate(plain.results) if _is_float(result)] or range(len(plain.results))

    def keep(outcome: OperatorOutcome) -> OperatorOutcome:
        return replace(outcome, results=tuple(outcome.results[place] for place in kept if place < len(outcome.results)))

    given, plain = keep(given), keep(plain)
    exact = application.compute_in_float64() if rounding.largest_change(given.results, plain.results) else None
    if exact is None:
        wrong = find_wrong_values(plain, given, None)
    else:
        noise = partial(measure_noise, application, exact)
        wrong = find_wrong_values(plain, given, (keep(exact[1]), keep(exact[0])), lambda _: noise())
    return None if wrong is None else ("values", *wrong)


def _is_float(value: object) -> bool:
    return has_floats([value])


def _format_call(application: Application) -> tuple[str, tuple[KernelInputJson, ...]]:
    """The call as Python, and its tensors."""
    inputs: list[KernelInputJson] = []

    def name_input(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(_describe_input(value))
        return _InputName(f"inputs[{len(inputs) - 1}]")

    args, kwargs = pytree.tree_map(name_input, application.initial_arguments)
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"torch.ops.{format_operator(application.operator)}({', '.join(parts)})", tuple(inputs)


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


# Operators whose decomposition, or whose description by fake tensors, does not do what their kernels do.

_DEFAULT = {"fallback_random": True}


@dataclass
class OperatorCheck:
    """Result of comparing the operators of one frame (without one: of the whole program) with their substitutes."""

    frame: Frame | None
    faults: list[Fault] = field(default_factory=list)
    watched: CrossrefRun = field(default_factory=CrossrefRun)
    kernels: list[KernelFault] = field(default_factory=list)

    def judge(self, application: Application) -> None:
        """Keep what is the matter with one application of an operator, if anything is.

        Kernels that give something else on contiguous operands are kept apart.
        """
        if application.way == CONTIGUOUS:
            kernel = find_kernel_fault(application, "eager")
            self.kernels += [] if kernel is None else [kernel]
            return
        fault = find_fault(application)
        if fault is not None:
            self.faults.append(fault)


def check_operators(
    ledger: Ledger, count: ReplayCount, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> list[OperatorCheck]:
    """Run dynamo's graphs and compare every operator with what the compiler takes in its place.

    Args:
        ledger: holds the graphs and the inputs of their calls.
        count: counts the replays.
        config: the entries of Inductor's config that the program was compiled under; ``fallback_random`` alone by
            default.
        seconds: bounds the time; operators that are not reached are not compared.
    """
    end = time.monotonic() + seconds
    graphs: list[OperatorCheck] = []
    with apply_config(config if config is not None else _DEFAULT):
        for frame, number in itertools.product(ledger.frames, range(CAPTURED_CALLS)):
            left = end - time.monotonic()
            checked = _check_call(frame, number, count, left) if left > 0 else None
            if checked is not None:
                graphs.append(checked)
    return graphs


def check_program(
    experiments: Experiments, config: Mapping[str, Any] | None = None, *, seconds: float = 20.0
) -> OperatorCheck:
    """As :func:`check_operators`, for a program that dynamo could not capture: it is run as it is, in eager mode.

    Args:
        experiments: the case to run.
        config: as for :func:`check_operators`.
        seconds: as for :func:`check_operators`.
    """
    checked = OperatorCheck(None)
    program = build(experiments.case, experiments.device)

    def run() -> None:
        runs.observe(experiments.case, program, program.model)

    with apply_config(config if config is not None else _DEFAULT):
        checked.watched = watch_program(run, checked.judge, lambda: next(iter_program_lines(), None), seconds=seconds)
    return checked


def _check_call(frame: Frame, number: int, count: ReplayCount, seconds: float) -> OperatorCheck | None:
    """One captured call of a frame; None if there was no such call."""
    record = frame.find_record(PRE_GRAD)
    if record is None or not record.snapshots:
        return None
    inputs = find_inputs(frame, record, number)
    if inputs is None:
        return None
    checked = OperatorCheck(frame)
    count.replays += 1
    checked.watched = watch_operators(
        record.snapshots[-1], inputs, checked.judge, tangents=_find_tangents(frame, number), seconds=seconds
    )
    return checked


def _find_tangents(frame: Frame, number: int) -> Sequence[Any] | None:
    """The gradients that the backward pass got; none of them where it never ran, None where there is none."""
    joint = frame.find_record(JOINT_GRAPH, "joint")
    if joint is None or not joint.snapshots:
        return None
    inputs = find_inputs(frame, joint, number)
    if inputs is None:
        return []
    named = zip((str(node.target) for node in list_placeholders(joint.snapshots[0])), inputs, strict=True)
    return [value for name, value in named if name.startswith("tangents")]
