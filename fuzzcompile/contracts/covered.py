"""Coverage of torch's promises: reasons for which two computations of an operator may differ in bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.operators import operator_name
from fuzzcompile.contracts.bits import Difference
from fuzzcompile.facts import facts

_LOW = (torch.bfloat16, torch.float16)
_CASTS = ("convert_element_type", "_to_copy")
# Two good implementations of a function differ by an ulp of float32, which changes the rounding to float16 of no more
# than one element in 2**12. A cast left out changes that of a large part of them.
_SHARE = 0.01
# Two forms of a function are at most so many ulps of the value apart.
_FORMS = 4
_ACCUMULATES = "its terms may be added in any order, or a library computes it"
_FUNCTION = "torch leaves open how it approximates this function"
_SCALAR = "torch does not say in which precision a Python number enters bfloat16 or float16 arithmetic"
_MULTIPLIED = "ATen multiplies by alpha and adds with one rounding"
_QUOTIENT = "torch leaves open how a quotient is computed that becomes a whole number"
_PAYLOAD = "the payload of a NaN is open"
_ZERO = "either zero is right"


def open_bits(node: fx.Node, value: torch.Tensor, difference: Difference) -> str | None:
    """Return why a lowering may give other bits than ATen on the same inputs; None if it may not.

    Args:
        node: the operator.
        value: what ATen gives.
        difference: how the lowering's value differs, once rounded.
    """
    family = family_of_operator(operator_name(node.target))
    spared = _spared(family, difference)
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
    if not low or few(difference):
        return _FUNCTION
    if family in facts().bitwise.covered.expanded:
        return f"torch expands {family} into operators that round on their own"
    inside = decomposed_from(node)
    return f"it is a part of {inside}, in which torch marks no cast" if inside else None


def open_cast(node: fx.Node) -> str | None:
    """Return why a lowering may leave its result unrounded; None if torch promises the cast."""
    family = family_of_operator(operator_name(node.target))
    inside = decomposed_from(node)
    if family in _CASTS or (_is_pointwise(node) and inside is None):
        return None
    if inside is not None:
        return f"it is a part of {inside}, in which torch marks no cast"
    return "torch promises casts after pointwise operators only"


def open_code(
    operators: Sequence[str],
    nodes: Iterable[fx.Node],
    difference: Difference,
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
    return _FUNCTION if dtype not in _LOW or few(difference) else None


def open_batch(operators: Sequence[str], difference: Difference) -> str | None:
    """Return why a kernel may give a row other bits in another batch; None if it may not.

    Args:
        operators: those of the loop, as Inductor calls them.
        difference: how the row's value differs.
    """
    if any(name.startswith("reduction") or name in ("scan", "sort") for name in operators):
        return None if _steers_reductions() else "batch_invariant steers the reductions of Triton kernels, not of C++"
    if is_exact(operators) or (difference.max_ulps or 0) > _FORMS:
        return None
    return "kernels for other sizes may compute a function in vectors or in scalars"


def _steers_reductions() -> bool:
    return torch.cuda.is_available()


def is_exact(operators: Sequence[str]) -> bool:
    """Return whether IEEE 754 leaves a loop of these operators one result."""
    return set(operators) <= facts().bitwise.covered.exact_in_loops


def open_family(family: str, difference: Difference) -> str | None:
    """Return why a substitute for an operator's kernel may give other bits; None if it may not."""
    spared = _spared(family, difference)
    if spared is not None:
        return spared
    if family in facts().bitwise.covered.exactly_rounded:
        return None
    return "torch promises casts between operators, and not that a decomposition rounds as the operator's own kernel"


def few(difference: Difference) -> bool:
    """Return whether so few elements differ that two good implementations of a function explain it."""
    return difference.differing <= max(1.0, _SHARE * difference.elements)


def decomposed_from(node: fx.Node) -> str | None:
    """The operator that a node is a part of the decomposition of; None if it is an operator of the program itself."""
    original = node.meta.get("original_aten")
    if original is None or original is node.target:
        return None
    name = operator_name(original)
    same = family_of_operator(name) == family_of_operator(operator_name(node.target))
    casts = family_of_operator(name) in _CASTS and family_of_operator(operator_name(node.target)) in _CASTS
    return None if same or casts else name


def _spared(family: str, difference: Difference) -> str | None:
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
