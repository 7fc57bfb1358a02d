"""Faults behind the graph passes, and the threshold beyond which a value counts as wrong."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.kernels.lowering_control import parse_operator
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph, LoweringFailure, OverwrittenBuffer
from fuzzcompile.model.verdicts import Comparison
from fuzzcompile.run.observation import Value
from fuzzcompile.run.tensors import significant_strides
from fuzzcompile.triage.kernels.code_generators import CodeGenerator, find_generator
from fuzzcompile.triage.oracle.comparison import compare

# A kernel's error may be this many times the noise: rounding was carried through the kernels before it, and through
# other ones in the values that it is compared with.
_KERNEL_FACTOR = 20.0
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
        as_value(value=right, stride=significant_strides(right)),
        as_value(value=value, stride=significant_strides(right)),
        as_value(value=exact),
        [as_value(value=sample) for sample in samples],
    )
    return comparison if comparison.finding in _WRONG else None


def is_beyond_rounding(comparison: Comparison) -> bool:
    """Return whether a value within default tolerances is wrong all the same."""
    usual = max(comparison.max_error_eager, comparison.noise_floor)
    return comparison.finding != "far" or comparison.max_error_compiled > _KERNEL_FACTOR * usual
