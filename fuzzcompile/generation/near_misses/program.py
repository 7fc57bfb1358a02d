"""Operators on blocks and layers: shared weights, writes in place, uneven operators."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import near_miss
from fuzzcompile.generation.registry import idiom
from fuzzcompile.generation.spec import CaseSpec


@near_miss(
    12,
    applies=lambda spec: spec.block is not None and spec.block.residual is None and spec.block.placement == "pre",
    present=lambda spec: spec.block is not None and spec.block.in_place,
)
def residual_in_place(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The branch is added to the residual stream in place.

    The stream is read before and after; functionalization and reinplacing must keep the two apart.
    """
    assert spec.block is not None
    return replace(spec, block=replace(spec.block, in_place=True))


@near_miss(
    15,
    applies=lambda spec: spec.block is not None and spec.block.layers > 1,
    present=lambda spec: spec.block is not None and spec.block.tied,
)
def blocks_tied(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """All blocks of the stack have the same weights: gradients add up, and one constant is used twice."""
    assert spec.block is not None
    return replace(spec, block=replace(spec.block, tied=True))


@near_miss(
    50,
    applies=lambda spec: spec.layer is not None and idiom(spec.layer.name).traits.uneven,
    present=lambda spec: spec.layer is not None and idiom(spec.layer.name).traits.uneven and bool(spec.layer["uneven"]),
)
def parts_uneven(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Operators that look alike differ in an argument or a dtype: a factor, a rounding mode, a bound.

    Operators may be fused into one only if they have all of these in common.
    """
    assert spec.layer is not None
    return replace(spec, layer=spec.layer.having(uneven=True))


@near_miss(
    12,
    applies=lambda spec: spec.head is None and spec.program is None and spec.attention.returns == "",
    present=lambda spec: spec.returns_activation,
)
def activation_returned(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The activation that enters the body is an output as well.

    It has two uses, may not be overwritten, and must keep its identity if it is an input.
    """
    return replace(spec, returns_activation=True)
