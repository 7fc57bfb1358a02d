"""Memory layouts of the inputs: strides, offsets, overlap, one tensor passed several times."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import NearMiss, has_heads, near_miss, register_near_miss, takes_qkv
from fuzzcompile.generation.spec import CaseSpec, InputLayout
from fuzzcompile.generation.tensors import LAYOUTS, MemoryLayout


def _operator(name: InputLayout, layout: MemoryLayout) -> NearMiss:
    def applies(spec: CaseSpec) -> bool:
        if 3 in layout.ranks:
            return spec.embedding is None
        return takes_qkv(spec) and has_heads(spec) and not spec.attention.leading

    return NearMiss(
        f"inputs_{name}",
        layout.summary,
        layout.weight,
        applies=applies,
        present=lambda spec: spec.inputs == name,
        change=lambda pen, spec: replace(spec, inputs=name),
        family="memory",
    )


for _name, _layout in LAYOUTS.items():
    if _layout.weight:
        register_near_miss(_operator(_name, _layout))


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
