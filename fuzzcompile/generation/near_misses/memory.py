"""Memory layouts of the inputs: strides, offsets, overlap, one tensor passed several times."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import has_heads, near_miss, takes_qkv
from fuzzcompile.generation.spec import CaseSpec


def _floats(spec: CaseSpec) -> bool:
    return spec.embedding is None


@near_miss(3, applies=_floats, present=lambda spec: spec.inputs == "transposed", family="memory")
def inputs_transposed(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The inputs' last two axes are swapped in memory.

    Operands that a rewrite copies, views or passes to a library kernel have other strides than it was traced with.
    """
    return replace(spec, inputs="transposed")


@near_miss(3, applies=_floats, present=lambda spec: spec.inputs == "sliced", family="memory")
def inputs_sliced(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The inputs are every second feature of a wider tensor: no axis has stride 1."""
    return replace(spec, inputs="sliced")


@near_miss(2, applies=_floats, present=lambda spec: spec.inputs == "offset", family="memory")
def inputs_offset(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The inputs begin at the second element of their storage, and so are not aligned for vectors."""
    return replace(spec, inputs="offset")


@near_miss(3, applies=_floats, present=lambda spec: spec.inputs == "expanded", family="memory")
def inputs_expanded(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The inputs are one sample expanded over the batch: their first stride is 0, their elements overlap."""
    return replace(spec, inputs="expanded")


@near_miss(
    2,
    applies=lambda spec: takes_qkv(spec) and has_heads(spec) and not spec.attention.leading,
    present=lambda spec: spec.inputs == "channels_last",
    family="memory",
)
def inputs_channels_last(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Query, key and value are in the memory format that convolutions like: axis 1 is the innermost."""
    return replace(spec, inputs="channels_last")


@near_miss(
    2,
    applies=lambda spec: takes_qkv(spec) and not spec.attention.cross and spec.attention.grouping is None,
    present=lambda spec: spec.aliased,
    family="memory",
)
def inputs_aliased(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Query, key and value are one tensor.

    Dynamo sees one input where the pattern has three, and gradients of all three meet.
    """
    return replace(spec, aliased=True)
