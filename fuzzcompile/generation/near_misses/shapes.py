"""Sizes that coincide, and sizes of one and zero."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import has_heads, near_miss, with_attention, with_dims
from fuzzcompile.generation.spec import CaseSpec


@near_miss(5, applies=lambda spec: True, present=lambda spec: spec.dims.batch == 1, keeps_plain=True)
def batch_one(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A batch of one.

    Matmul then copies no permuted operands, so that the graph differs from the one that a pattern was traced with at
    batch 2 (hence the ``_bs1`` variants); and (1, …) broadcasts where (B, …) does not.
    """
    return with_dims(spec, batch=1)


@near_miss(22, applies=has_heads, present=lambda spec: has_heads(spec) and spec.dims.sequence == spec.dims.heads)
def sequence_is_heads(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """As many tokens as heads.

    (B, H, T, D) and (B, T, H, D) are then the same shape, and no shape check shows a rewrite that it confused them.
    """
    return with_dims(with_attention(spec, cross=False), sequence=spec.dims.heads)


@near_miss(8, applies=lambda spec: True, present=lambda spec: spec.dims.sequence == spec.dims.head_dim)
def sequence_is_head_dim(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """As many tokens as features of a head: a key and its transpose have the same shape."""
    return with_dims(spec, sequence=spec.dims.head_dim)


@near_miss(4, applies=lambda spec: True, present=lambda spec: spec.dims.sequence == 1)
def sequence_one(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A single token, as in a decode step.

    Its axis can be squeezed, broadcast and reduced away, matrices become vectors, and its stride is meaningless.
    """
    return with_dims(spec, sequence=1)


@near_miss(3, applies=lambda spec: True, present=lambda spec: 1 in (spec.dims.heads, spec.dims.head_dim))
def heads_one(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """One head, or heads of one feature: products over a single element, permutations that move nothing."""
    if pen.chance(50):
        return with_dims(spec, heads=1)
    return with_dims(spec, head_dim=1, heads=max(2, spec.dims.heads))


@near_miss(2, applies=lambda spec: True, present=lambda spec: 0 in (spec.dims.batch, spec.dims.sequence))
def empty(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """No samples, or no tokens at all: tensors without elements, reductions over nothing."""
    if pen.chance(30) and spec.layer is None:
        return with_dims(spec, sequence=0)
    return with_dims(spec, batch=0)
