"""Compiles with some operators or templates changed, and the bisection for the one that repairs the divergence."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.compile_changes import InductorSettings, Lowered
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, UNCHANGED, Control, parse_operator
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph, LoweringFailure, OverwrittenBuffer
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.kernels.code_generators import CodeGenerator, find_generator
from fuzzcompile.diagnosis.oracle.comparison import compare
from fuzzcompile.model.stages import CODEGEN, SCHEDULER
from fuzzcompile.model.thresholds import KERNEL_FACTOR
from fuzzcompile.model.verdicts import Comparison
from fuzzcompile.run.observation import Value
from fuzzcompile.run.tensors import list_significant_strides

_MAX_BISECTION = 6
# What to change for a part of the candidates.
Change = Callable[[tuple[str, ...]], Control]


def with_aten(operators: Sequence[str]) -> Lowered:
    """ATen computes these operators."""
    return Lowered(Control(fallbacks=tuple(operators)), "ATen computes " + ", ".join(operators))


def without_fusion(labels: tuple[str, ...]) -> Lowered:
    """The operators of one kernel are fused with nothing."""
    return Lowered(Control(apart=labels), "this kernel not fused")


def with_isolated_kernels(labels: tuple[str, ...]) -> Lowered:
    """Each operator has a kernel of its own."""
    return Lowered(Control(realised=labels, apart=(EVERYTHING,), separate=True), "nothing fused")


def is_right_without_vectors(ablator: Ablator, generator: CodeGenerator) -> bool:
    """Return whether the divergence is gone when no loop is vectorised.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return ablator.attempt_under(InductorSettings(generator.scalars, needs_code=True))[1]


def find_right_in_scalars(
    ablator: Ablator, generator: CodeGenerator, operators: Sequence[str]
) -> tuple[str | None, list[str]]:
    """The operator of vectorised code that, done in scalars alone, repairs the divergence.

    Args:
        ablator: makes the compiles.
        generator: the code generator of the kernel.
        operators: the candidates, as the code generator calls them.

    Returns:
        The operator, None if there is none; and those that could not be done in scalars, of which nothing is known.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return bisect_candidates(ablator, operators, lambda half: generator.scalarise(half) or UNCHANGED, "{} in scalars")


def bisect_candidates(
    ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str
) -> tuple[str | None, list[str]]:
    """The candidate that alone repairs the divergence when ``change`` is applied to it.

    Args:
        ablator: makes the compiles.
        candidates: what may be changed, most telling first.
        change: what to change for a part of the candidates.
        toggle: what the table of ablations calls the change; ``{}`` stands for the candidates.

    Returns:
        The candidate, None if there is none; and those with which the program fails in another way than without, so
        that nothing is known of them.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    left, untested = list(candidates), list[str]()
    for _ in range(_MAX_BISECTION):
        if not left:
            break
        half = tuple(left[: (len(left) + 1) // 2])
        repaired, failed = _try_change(ablator, half, change, toggle)
        if len(half) == 1:
            if repaired:
                return half[0], untested
            untested += half if failed else ()
        elif failed:  # a candidate that does not compile says nothing of the others
            return _try_one_by_one(ablator, left, change, toggle)
        elif repaired:
            left = list(half)
            continue
        left = left[len(half) :]
    return None, untested


def _try_one_by_one(
    ablator: Ablator, candidates: Sequence[str], change: Change, toggle: str
) -> tuple[str | None, list[str]]:
    untested: list[str] = []
    for name in candidates[:_MAX_BISECTION]:
        repaired, failed = _try_change(ablator, (name,), change, toggle)
        if repaired:
            return name, untested
        if failed:
            untested.append(name)
    return None, untested


def _try_change(ablator: Ablator, names: tuple[str, ...], change: Change, toggle: str) -> tuple[bool, bool]:
    """Return whether the change repairs the divergence, and whether the program then fails in another way."""
    trial, repaired = ablator.attempt_under(Lowered(change(names), toggle.format(", ".join(names))))
    return repaired, trial.observation.failure is not None and not ablator.fails_alike(trial)


# Products that autotuning gave to a template of Inductor's: proved by one compile that leaves them to a library.

_TEMPLATE = re.compile(r"CppTemplateBuffer\((\w+)\)")
_LIBRARY: dict[str, object] = {"max_autotune": False, "max_autotune_gemm": False}
_FILES = {"CppGemmTemplate": "cpp_gemm_template", "CppBmmTemplate": "cpp_bmm_template"}


def prove_templates(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    """The C++ template whose kernels the divergence needs; None if there is none, or it stays without.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    reached = divergence.trial.ledger.reached
    named = sorted({name for part in reached if part.stage == SCHEDULER for name in _TEMPLATE.findall(part.name)})
    if not named or not ablator.attempt_under(InductorSettings(_LIBRARY, needs_code=True))[1]:
        return None
    source, line = _locate_template(named[0])
    family = "+".join(named)
    return Attribution(Culprit(CODEGEN, None, family, family, source=source, line=line, necessary=True))


def _locate_template(template: str) -> tuple[str | None, int | None]:
    module = _FILES.get(template)
    return find_definition(f"torch._inductor.codegen.{module}:{template}.render") if module else (None, None)


# Faults behind the graph passes, and the threshold beyond which a value counts as wrong.

_WRONG = ("far", "nonfinite", "integer", "shape", "dtype")


@dataclass(frozen=True)
class WrongOperator:
    """An operator whose IR is wrong though everything that it reads is right.

    Attributes:
        lowered: the graph.
        node: the operator's node.
        exact: wrong in float64, so that rounding cannot explain it.
        step: the largest error in units of the value's RMS size.
        comparison: how the values differ, where they were compared in the program's own dtypes.
        kernel: the kernel of a library, where it is the call that is wrong.
    """

    lowered: LoweredGraph
    node: str
    exact: bool
    step: float
    comparison: Comparison | None = None
    kernel: Kernel | None = None

    @property
    def name(self) -> str:
        """The operator: ``aten.gelu.default``."""
        return parse_operator(self.lowered.labels[self.node])


@dataclass(frozen=True)
class WrongKernel:
    """A kernel that writes something else than its IR says, the first one in a call of a graph.

    Attributes:
        lowered: the graph.
        kernel: the kernel.
        buffer: what it wrote wrongly.
        comparison: how the buffer differs from what the IR says.
        nodes: the operators whose values the buffer holds or was computed with.
        scheduled: the scheduler's form of the loops is wrong already.
        overwritten: an argument that was right when it was written, and not when the kernel read it.
    """

    lowered: LoweredGraph
    kernel: Kernel
    buffer: str
    comparison: Comparison
    nodes: tuple[str, ...]
    scheduled: bool = False
    overwritten: OverwrittenBuffer | None = None

    @property
    def generator(self) -> CodeGenerator:
        """The code generator that wrote the kernel."""
        return find_generator(self.lowered, self.kernel.name)

    @property
    def is_vectorised(self) -> bool:
        """Return whether its code uses vectors."""
        return self.generator.is_vectorised(self.lowered.sources.get(self.kernel.name, ""))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all operators of the kernel."""
        return list_labels(self.lowered, self.kernel.nodes)

    def operators(self) -> list[str]:
        """The operators of the loop that writes the buffer, as the code generator calls them."""
        return self.generator.operators(self.kernel.scheduled, self.buffer)

    def all_operators(self) -> list[str]:
        """The operators of all loops of the kernel, as the code generator calls them."""
        names = (
            name for buffer in self.kernel.writes for name in self.generator.operators(self.kernel.scheduled, buffer)
        )
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class WrongOutput:
    """An output of a compiled graph, or an input that it writes to, that is wrong though the kernels are right."""

    lowered: LoweredGraph
    name: str
    comparison: Comparison


@dataclass(frozen=True)
class BackendFailure:
    """An error that rose behind the graph passes, in the compiler or in a kernel."""

    lowered: LoweredGraph
    failed: LoweringFailure

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the operators that were lowered, or that the kernel computes."""
        return list_labels(self.lowered, self.failed.nodes)

    @property
    def generator(self) -> CodeGenerator:
        """The code generator that wrote the kernel, or was writing it."""
        return find_generator(self.lowered, self.failed.kernel)

    @property
    def is_vectorised(self) -> bool:
        """Return whether the kernel's code uses vectors."""
        return self.generator.is_vectorised(self.lowered.sources.get(self.failed.kernel or "", ""))

    def code_operators(self) -> list[str]:
        """The operators of the last loop of the kernel, as the code generator calls them."""
        kernel = self.lowered.find_kernel(self.failed.kernel)
        if kernel is None or not kernel.writes:
            return []
        return self.generator.operators(kernel.scheduled, kernel.writes[-1])


def list_labels(lowered: LoweredGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    """The labels of those nodes that are operators."""
    return tuple(lowered.labels[name] for name in nodes if name in lowered.labels)


def list_operator_names(lowered: LoweredGraph, nodes: Sequence[str]) -> tuple[str, ...]:
    """The operators of the nodes, each once: ``aten.gelu.default``."""
    return tuple(dict.fromkeys(parse_operator(label) for label in list_labels(lowered, nodes)))


def find_node_family(lowered: LoweredGraph, node: str) -> str:
    """The family of a node's operator: ``gelu``."""
    return get_operator_family(parse_operator(lowered.labels.get(node, "")))


def find_error(
    name: str, right: torch.Tensor, value: torch.Tensor, exact: torch.Tensor, samples: Sequence[torch.Tensor]
) -> Comparison | None:
    """Compare ``value`` with ``exact``; None if rounding explains the distance.

    Args:
        name: of the value.
        right: another computation of the value, in the same dtype.
        value: what is judged.
        exact: the value in float64.
        samples: the right computation with rounding errors added, once each.
    """
    as_value = functools.partial(Value, name, kind="output")
    comparison = compare(
        as_value(value=right, stride=list_significant_strides(right)),
        as_value(value=value, stride=list_significant_strides(right)),
        as_value(value=exact),
        [as_value(value=sample) for sample in samples],
    )
    return comparison if comparison.finding in _WRONG else None


def is_beyond_rounding(comparison: Comparison) -> bool:
    """Return whether a value within default tolerances is wrong all the same."""
    usual = max(comparison.max_error_eager, comparison.noise_floor)
    return comparison.finding != "far" or comparison.max_error_compiled > KERNEL_FACTOR * usual
