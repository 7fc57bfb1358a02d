"""Operators on an attention: its scale, mask, softmax, dropout, operands and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import (
    attends,
    has_heads,
    has_scores,
    near_miss,
    takes_qkv,
    with_attention,
)
from fuzzcompile.generation.registry import form_of
from fuzzcompile.generation.spec import Attention, CaseSpec, Mask, MaskShape, MaskUse


def _mask_is(spec: CaseSpec, holds: Callable[[Mask], bool]) -> bool:
    return attends(spec) and spec.attention.mask is not None and holds(spec.attention.mask)


def _hides(attention: Attention) -> bool:
    """Return whether keys are hidden entirely; over another axis a whole line would be −inf."""
    return form_of(attention).hides_keys or (attention.mask is not None and attention.mask.hides)


@near_miss(
    24,
    applies=lambda spec: (
        has_heads(spec)
        and form_of(spec.attention).key_permuted
        and spec.attention.returns != "keys"
        and not (spec.attention.position or spec.attention.norm or spec.attention.grouping)
    ),
    present=lambda spec: attends(spec) and spec.attention.key_permuted,
)
def key_permuted(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The key goes from (B, T, H, D) straight to (B, H, D, T) by one permute.

    The SDPA patterns look for ``transpose(-2, -1)``, in ATen a permute as well: a pattern that takes any
    permute for that one hands SDPA a key whose heads and tokens are swapped.
    """
    return with_attention(spec, key_permuted=True)


@near_miss(
    20,
    applies=lambda spec: (
        attends(spec)
        and form_of(spec.attention).softmax_axis
        and not _hides(spec.attention)
        and not spec.attention.sink
    ),
    present=lambda spec: attends(spec) and spec.attention.softmax_axis != -1,
)
def softmax_axis(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Softmax over queries, heads or batch.

    SDPA normalises over keys alone, so no SDPA pattern may take it, whatever the sizes.
    """
    axes = (-2, 0, 1) if has_heads(spec) else (-2, 0)
    return with_attention(spec, softmax_axis=pen.one_of(axes))


@near_miss(
    7,
    applies=lambda spec: attends(spec) and form_of(spec.attention).scale_takes == "tensor",
    present=lambda spec: attends(spec) and spec.attention.scale != "literal",
)
def tensor_scale(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The scale is a tensor: a buffer, a parameter, or of one element.

    SDPA's ``scale`` is a number, so a pattern has to refuse a tensor, with a mask as without.
    """
    return with_attention(spec, scale=pen.one_of(("buffer", "parameter", "one_element")))


@near_miss(
    6,
    applies=lambda spec: attends(spec) and form_of(spec.attention).scale_takes in ("number", "tensor"),
    present=lambda spec: attends(spec) and "factor" in spec.attention.chosen,
)
def odd_scale(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The scale is 1, −1, or far from the usual one.

    Products with 1 are removed, a negative factor turns a maximum into a minimum (which softmax subtracts), and a
    scale may not be split into two square roots.
    """
    form = (*spec.attention.form, ("factor", pen.one_of((1, -1, -0.5, 8.0, 1e-3))))
    return with_attention(spec, form=form)


@near_miss(
    30,
    applies=lambda spec: (
        has_scores(spec) and not form_of(spec.attention).own_mask and _mask_is(spec, lambda mask: mask.use == "add")
    ),
    present=lambda spec: (
        has_scores(spec)
        and _mask_is(spec, lambda mask: mask.dtype not in ("model", *form_of(spec.attention).mask_dtypes))
    ),
)
def mask_dtype(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The mask is of another dtype than the scores.

    Added, a wider mask promotes them, and a boolean one adds 1 where SDPA would hide keys by it. In
    ``masked_fill`` and ``where`` true means hidden, in SDPA kept.
    """
    mask = spec.attention.mask or Mask()
    rest = [name for name in ("int64", "float32", "float16", "float64", "int8") if name != spec.dtype]
    dtype = pen.weighted([("bool", 3), *((name, 1) for name in rest)])
    if dtype in ("int64", "int8"):
        return with_attention(spec, mask=replace(mask, kind="bias", dtype="int64", inside=False))
    if dtype != "bool":
        return with_attention(spec, mask=replace(mask, dtype=dtype))
    fills = spec.attention.softmax_axis == -1
    use: MaskUse = pen.one_of(("fill", "where", "add")) if fills else "add"
    kind = "causal" if mask.kind in ("bias", "alibi") and mask.shape != "key" else mask.kind
    return with_attention(spec, mask=replace(mask, kind=kind, dtype="bool", use=use))


@near_miss(
    30,
    applies=lambda spec: spec.attention.mask is not None and attends(spec) and not form_of(spec.attention).own_mask,
    present=lambda spec: _mask_is(spec, lambda mask: mask.shape not in ("square", "key") and _unusual(mask)),
)
def mask_rank(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A mask of rank 1, 2 or 3 that broadcasts, or one with an entry for every score.

    The patterns were traced with (1, 1, T, T) and (B, 1, 1, T), and SDPA broadcasts by rules of its own.
    """
    mask = spec.attention.mask or Mask()
    shapes: list[MaskShape] = ["matrix", "full"]
    if has_heads(spec):
        shapes.append("heads")
    if mask.kind in ("bias", "alibi", "padding") and has_scores(spec):
        shapes.append("row")
    return with_attention(spec, mask=replace(mask, shape=pen.one_of(shapes)))


def _unusual(mask: Mask) -> bool:
    return not (mask.kind == "alibi" and mask.shape == "heads")


@near_miss(
    6,
    applies=lambda spec: (
        attends(spec)
        and _mask_is(spec, lambda mask: mask.shape not in ("key", "row") and mask.dtype != "int64")
        and spec.attention.softmax_axis == -1
        and not spec.attention.cross
    ),
    present=lambda spec: _mask_is(spec, lambda mask: mask.blocked),
)
def query_blocked(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The mask leaves one query without any key.

    Softmax over −inf alone is NaN, where a safe softmax gives zeros and a fill with the least number an average: a
    rewrite must keep which of them it is.
    """
    mask = spec.attention.mask or Mask()
    kind = mask.kind if mask.dtype == "bool" else "causal"
    return with_attention(spec, mask=replace(mask, kind=kind, blocked=True))


@near_miss(
    20,
    applies=lambda spec: has_scores(spec) and not spec.training,
    present=lambda spec: attends(spec) and bool(spec.attention.dropout) and not spec.training,
)
def eval_dropout(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Dropout between softmax and the value, in eval mode.

    It has no effect, but may leave a copy in the graph, so that other patterns match than the plain ones.
    """
    return with_attention(spec, dropout=pen.one_of((0.1, 0.5)))


def _can_expand(spec: CaseSpec) -> bool:
    a = spec.attention
    source_is_shared = spec.block is not None and a.projection is None
    return (
        has_heads(spec)
        and spec.dims.heads > 1
        and not source_is_shared
        and a.grouping is None
        and form_of(a).shared_heads
    )


@near_miss(7, applies=_can_expand, present=lambda spec: attends(spec) and spec.attention.expanded)
def keys_expanded(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """One head of keys and values expanded to all heads, as multi-query attention does it.

    Their stride is 0: a rewrite that wants contiguous operands, or writes into them, has to copy first.
    """
    return with_attention(spec, expanded=True)


@near_miss(
    20,
    applies=lambda spec: has_scores(spec) and spec.block is None and not spec.attention.returns and not spec.head,
    present=lambda spec: attends(spec) and spec.attention.returns == "weights",
)
def weights_returned(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The attention weights are an output too.

    SDPA does not return them, so a pattern may match only if they have no other use.
    """
    return with_attention(spec, returns="weights")


@near_miss(
    15,
    applies=lambda spec: (
        takes_qkv(spec)
        and spec.attention.layout == "heads_first"
        and form_of(spec.attention).leading
        and not (spec.attention.grouping or spec.attention.position or spec.attention.expanded)
        and not spec.attention.key_permuted
    ),
    present=lambda spec: attends(spec) and spec.attention.leading,
)
def five_dimensions(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Query, key and value have five dimensions.

    Batched products take any number of them, the kernels behind SDPA four, and a check for "more than" is not one
    for "exactly".
    """
    return with_attention(spec, leading=True)
