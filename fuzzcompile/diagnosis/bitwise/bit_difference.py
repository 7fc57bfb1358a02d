"""Differences of bits: their size, the place at which they begin, and the promises of torch that cover it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

import torch
from torch import fx

from fuzzcompile.compiler.kernels.lowering_control import get_operator_name
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.diagnosis.attribution.culprit import Culprit, Proof
from fuzzcompile.model.contract import PartingJson, PromiseJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.thresholds import DIFFERING_SHARE, FORMS_APART
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.tensors import densify

# Differences of bits between two values.

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class BitDifference:
    """Difference between the bits of two values of one name.

    Bits are compared, so that two zeros of different sign differ and so do two NaN of different payload. Both are
    counted apart from values: IEEE 754 leaves the payload of a NaN open, and torch promises none.

    Attributes:
        elements: how many there are.
        differing: how many have other bits.
        max_ulps: the largest distance in units in the last place of the dtype, over the elements that are numbers in
            both; None for values that are no floating-point tensors of one dtype and shape.
        zero_signs: of the differing elements, those that are zero in both.
        nan_payloads: of the differing elements, those that are NaN in both.
    """

    name: str
    elements: int
    differing: int
    max_ulps: int | None = None
    zero_signs: int = 0
    nan_payloads: int = 0
    detail: str = ""

    @property
    def share(self) -> float:
        """The share of the elements that differ."""
        return self.differing / max(self.elements, 1)

    @property
    def only_payloads(self) -> bool:
        """Return whether nothing but the payloads of NaN differs."""
        return self.differing == self.nan_payloads and not self.detail

    @property
    def only_zero_signs(self) -> bool:
        """Return whether nothing but payloads and the signs of zeros differs."""
        return self.differing == self.nan_payloads + self.zero_signs and not self.detail

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        ulps = "" if self.max_ulps is None else f", by up to {self.max_ulps} ulp"
        return f"{self.differing} of {self.elements} elements differ{ulps}"


def compare_bits(name: str, first: torch.Tensor, second: torch.Tensor) -> BitDifference | None:
    """Compare two tensors; None if they have the same dtype, shape and bits."""
    if first.dtype != second.dtype or first.shape != second.shape:
        forms = [f"{value.dtype} {tuple(value.shape)}" for value in (first, second)]
        return BitDifference(name, second.numel(), second.numel(), detail=f"{forms[0]} against {forms[1]}")
    left, right = (_flatten_real(value) for value in (first, second))
    bits = _INTEGERS[left.element_size()]
    apart = left.view(bits) != right.view(bits)
    count = int(apart.sum())
    if not count:
        return None
    if not left.is_floating_point():
        return BitDifference(name, left.numel(), count)
    zeros, payloads = apart & (left == 0) & (right == 0), apart & left.isnan() & right.isnan()
    ulps = _count_ulps(left, right, bits)
    return BitDifference(name, left.numel(), count, ulps, int(zeros.sum()), int(payloads.sum()))


def compare_runs(first: Observation, second: Observation, *, kinds: Sequence[str] = ()) -> list[BitDifference]:
    """The values of two runs that differ, by name; ``kinds`` of values, all by default."""
    there = second.index_by_name()
    pairs = [(value, there.get(value.name)) for value in first.values if not kinds or value.kind in kinds]
    known = {value.name for value in first.values}
    found = [_compare_values(value, paired) for value, paired in pairs]
    found += [
        BitDifference(value.name, 1, 1, detail="only one of the runs has it")
        for value in second.values
        if value.name not in known and (not kinds or value.kind in kinds)
    ]
    return [apart for apart in found if apart is not None]


def _compare_values(value: Value, paired: Value | None) -> BitDifference | None:
    if paired is None or value.is_tensor != paired.is_tensor:
        return BitDifference(value.name, 1, 1, detail="only one of the runs has it")
    if value.is_tensor:
        return compare_bits(value.name, value.value, paired.value)
    if isinstance(value.value, float) and isinstance(paired.value, float):
        numbers = [torch.tensor(number, dtype=torch.float64) for number in (value.value, paired.value)]
        return compare_bits(value.name, *numbers)
    if value.value == paired.value:
        return None
    return BitDifference(value.name, 1, 1, detail=f"{value.value!r} against {paired.value!r}"[:200])


def _flatten_real(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row on the CPU, complex numbers as pairs."""
    values = densify(tensor).detach().cpu().contiguous().reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    return values


def _count_ulps(left: torch.Tensor, right: torch.Tensor, bits: torch.dtype) -> int | None:
    """The largest distance in steps from one representable number to the next."""
    numbers = ~(left.isnan() | right.isnan())
    if left.element_size() == 1 or not bool(numbers.any()):
        return None
    first, second = (_order_as_integers(value[numbers].view(bits)) for value in (left, right))
    return int((first - second).abs().max())


def _order_as_integers(bits: torch.Tensor) -> torch.Tensor:
    """Signed magnitudes as integers in the order of the numbers; both zeros are 0."""
    wide = bits.to(torch.int64)
    lowest = torch.iinfo(bits.dtype).min
    return torch.where(wide < 0, lowest - wide, wide)


# Partings: the graph, operator and kernel from which on bits differ, and torch's promise for that place.


@dataclass(frozen=True)
class Parting:
    """A place in a compiled program from which on bits differ.

    Attributes:
        graph: number of dynamo's graph; ``direction`` says which graph was made of it.
        stage: the stage of the compiler that made the difference.
        operator: the operator (``aten.mul.Tensor``), or the rewrite; None if no operator could be singled out.
        node: the operator's node in the graph.
        kernel: the kernel that computes it, as Inductor calls it; None where no kernel is concerned.
        site: the user's line (``model.py:14 #1``).
        source: the file of the compiler that is at work there, with ``line``.
        difference: how the bits differ there.
        unpromised: why torch promises nothing there; None where it does.
        position: its place in the order of execution, as far as it is known.
        detail: what was seen, in a few words.
    """

    graph: int
    direction: str
    stage: str
    operator: str | None
    difference: BitDifference
    detail: str
    node: str | None = None
    kernel: str | None = None
    site: str | None = None
    source: str | None = None
    line: int | None = None
    unpromised: str | None = None
    position: int = 0

    @property
    def is_promised(self) -> bool:
        """Return whether torch promises equal bits there."""
        return self.unpromised is None

    def __str__(self) -> str:
        kernel = f" in kernel {self.kernel}" if self.kernel else ""
        at = f" at {self.site}" if self.site else ""
        return (
            f"{self.operator or 'no single operator'}{at}{kernel} (graph {self.graph} {self.direction}, {self.stage})"
        )

    def to_json(self) -> PartingJson:
        """The form of the triage contract."""
        return {
            "graph": self.graph,
            "direction": self.direction,
            "operator": self.operator,
            "node": self.node,
            "kernel": self.kernel,
            "stage": self.stage,
            "site": self.site,
            "source": self.source,
            "line": self.line,
            "promised": self.is_promised,
            "why": self.unpromised or self.detail,
            "differing": self.difference.differing,
            "elements": self.difference.elements,
            "max_ulps": self.difference.max_ulps,
        }

    def culprit(self, **proof: Unpack[Proof]) -> Culprit:
        """The parting as a culprit."""
        return Culprit.from_operator(
            self.stage,
            self.operator,
            nodes=(self.node,) if self.node else (),
            source=self.source,
            line=self.line,
            site=self.site,
            details={"kernel": self.kernel, "graph": self.direction, "parting": self.detail},
            **proof,
        )


def sort_partings(partings: Iterable[Parting]) -> list[Parting]:
    """Partings in the order of execution: graphs forward, then backward in reverse; places within a graph."""

    def key(parting: Parting) -> tuple[bool, int, int]:
        backward = parting.direction == "backward"
        return backward, -parting.graph if backward else parting.graph, parting.position

    return sorted(partings, key=key)


@dataclass(frozen=True)
class PromiseAnswer:
    """Outcome of checking one promise.

    Attributes:
        name: ``eager``, ``batch`` or ``run_to_run``.
        holds: whether bits are equal; None where they part and nothing is promised, and where it was not looked at.
        why: one sentence.
        partings: where bits part, in the order of execution.
        outputs: how the outputs differ.
        unsure: the look was not complete, so that a better informed one might say otherwise.
    """

    name: str
    holds: bool | None
    why: str
    partings: tuple[Parting, ...] = ()
    outputs: tuple[BitDifference, ...] = ()
    unsure: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Parting | None:
        """The first parting where equal bits are promised; if there is none, the first of all."""
        return next((parting for parting in self.partings if parting.is_promised), next(iter(self.partings), None))

    def to_json(self) -> PromiseJson:
        """The form of the triage contract."""
        return {
            "promise": self.name,
            "holds": self.holds,
            "why": self.why,
            "first": self.first.to_json() if self.first is not None else None,
            "unpromised": [parting.to_json() for parting in self.partings if not parting.is_promised][:_SHOWN],
            "outputs": [
                {
                    "name": output.name,
                    "differing": output.differing,
                    "elements": output.elements,
                    "max_ulps": output.max_ulps,
                    "zero_signs": output.zero_signs,
                    "nan_payloads": output.nan_payloads,
                    "detail": output.detail,
                }
                for output in self.outputs
            ],
        }


_SHOWN = 20  # partings without a promise that a report lists


_LOW = (torch.bfloat16, torch.float16)
_CASTS = ("convert_element_type", "_to_copy")
_ACCUMULATES = "its terms may be added in any order, or a library computes it"
_FUNCTION = "torch leaves open how it approximates this function"
_SCALAR = "torch does not say in which precision a Python number enters bfloat16 or float16 arithmetic"
_MULTIPLIED = "ATen multiplies by alpha and adds with one rounding"
_QUOTIENT = "torch leaves open how a quotient is computed that becomes a whole number"
_PAYLOAD = "the payload of a NaN is open"
_ZERO = "either zero is right"


def why_open_bits(node: fx.Node, value: torch.Tensor, difference: BitDifference) -> str | None:
    """Return why a lowering may give other bits than ATen on the same inputs; None if it may not.

    Args:
        node: the operator.
        value: what ATen gives.
        difference: how the lowering's value differs, once rounded.
    """
    family = get_operator_family(get_operator_name(node.target))
    spared = _why_spared(family, difference)
    if spared is not None:
        return spared
    low = value.dtype in _LOW
    if low and _has_number(node, value.dtype):
        return _SCALAR
    if node.kwargs.get("alpha", 1) != 1:
        return _MULTIPLIED
    if node.kwargs.get("rounding_mode") is not None and value.is_floating_point():
        return _QUOTIENT
    if family in facts().bitwise.covered.exactly_rounded:
        return None
    if not _is_pointwise(node):
        return _ACCUMULATES
    if not low or is_rare(difference):
        return _FUNCTION
    if family in facts().bitwise.covered.expanded:
        return f"torch expands {family} into operators that round on their own"
    inside = find_decomposed_operator(node)
    return f"it is a part of {inside}, in which torch marks no cast" if inside else None


def why_open_cast(node: fx.Node) -> str | None:
    """Return why a lowering may leave its result unrounded; None if torch promises the cast."""
    family = get_operator_family(get_operator_name(node.target))
    inside = find_decomposed_operator(node)
    if family in _CASTS or (_is_pointwise(node) and inside is None):
        return None
    if inside is not None:
        return f"it is a part of {inside}, in which torch marks no cast"
    return "torch promises casts after pointwise operators only"


def why_open_code(
    operators: Sequence[str],
    nodes: Iterable[fx.Node],
    difference: BitDifference,
    dtype: torch.dtype,
    *,
    reads_unknown: bool,
) -> str | None:
    """Return why a kernel may give other bits than its loop evaluated on the same inputs; None if it may not.

    Args:
        operators: those of the loop, as Inductor calls them.
        nodes: the operators of the graph that the loop computes.
        difference: how the kernel's value differs.
        dtype: of the value.
        reads_unknown: the loop reads what no kernel stored.
    """
    if difference.only_payloads:
        return _PAYLOAD
    if any(name.startswith("reduction") or name in ("scan", "sort") for name in operators):
        return _ACCUMULATES
    if reads_unknown:
        return "it reads a reduction or an approximation that no kernel stores, whose bits are open"
    if dtype in _LOW and any(_has_number(node, dtype) for node in nodes):
        return _SCALAR
    if is_exact(operators):
        choosing = {"maximum", "minimum", "relu"} & set(operators)
        return _ZERO if difference.only_zero_signs and choosing else None
    return _FUNCTION if dtype not in _LOW or is_rare(difference) else None


def why_open_batch(operators: Sequence[str], difference: BitDifference) -> str | None:
    """Return why a kernel may give a row other bits in another batch; None if it may not.

    Args:
        operators: those of the loop, as Inductor calls them.
        difference: how the row's value differs.
    """
    if any(name.startswith("reduction") or name in ("scan", "sort") for name in operators):
        return None if _steers_reductions() else "batch_invariant steers the reductions of Triton kernels, not of C++"
    if is_exact(operators) or (difference.max_ulps or 0) > FORMS_APART:
        return None
    return "kernels for other sizes may compute a function in vectors or in scalars"


def _steers_reductions() -> bool:
    return torch.cuda.is_available()


def is_exact(operators: Sequence[str]) -> bool:
    """Return whether IEEE 754 leaves a loop of these operators one result."""
    return set(operators) <= facts().bitwise.covered.exact_in_loops


def why_open_family(family: str, difference: BitDifference) -> str | None:
    """Return why a substitute for an operator's kernel may give other bits; None if it may not."""
    spared = _why_spared(family, difference)
    if spared is not None:
        return spared
    if family in facts().bitwise.covered.exactly_rounded:
        return None
    return "torch promises casts between operators, and not that a decomposition rounds as the operator's own kernel"


def is_rare(difference: BitDifference) -> bool:
    """Return whether so few elements differ that two good implementations of a function explain it."""
    return difference.differing <= max(1.0, DIFFERING_SHARE * difference.elements)


def find_decomposed_operator(node: fx.Node) -> str | None:
    """The operator that a node is a part of the decomposition of; None if it is an operator of the program itself."""
    original = node.meta.get("original_aten")
    if original is None or original is node.target:
        return None
    name = get_operator_name(original)
    same = get_operator_family(name) == get_operator_family(get_operator_name(node.target))
    casts = get_operator_family(name) in _CASTS and get_operator_family(get_operator_name(node.target)) in _CASTS
    return None if same or casts else name


def _why_spared(family: str, difference: BitDifference) -> str | None:
    if difference.only_payloads:
        return _PAYLOAD
    if difference.only_zero_signs and family in facts().bitwise.covered.either_zero:
        return _ZERO
    return None


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _has_number(node: fx.Node, dtype: torch.dtype) -> bool:
    """Return whether a Python number that the dtype cannot represent enters the operator."""
    numbers = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, (int, float))]
    return any(float(torch.tensor(float(number)).to(dtype)) != number for number in numbers)
