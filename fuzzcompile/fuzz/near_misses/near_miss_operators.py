"""Near misses of attention, inputs, blocks, sizes and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzzcompile.fuzz.generation.spec import Attention, CaseSpec, Choices, Mask, MaskShape, MaskUse, Pen
from fuzzcompile.fuzz.idioms.registry import find_attention_traits, idiom
from fuzzcompile.fuzz.near_misses.near_miss_registry import (
    NearMiss,
    attends,
    detour,
    has_heads,
    has_scores,
    near_miss,
    register_near_miss,
    takes_qkv,
    with_attention,
    with_dims,
)
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES, InputLayout, MemoryLayout


def _mask_is(spec: CaseSpec, holds: Callable[[Mask], bool]) -> bool:
    return attends(spec) and spec.attention.mask is not None and holds(spec.attention.mask)


def _hides_keys(attention: Attention) -> bool:
    """Return whether keys are hidden entirely; over another axis a whole line would be −inf."""
    return find_attention_traits(attention).hides_keys or (attention.mask is not None and attention.mask.hides)


@near_miss(
    24,
    applies=lambda spec: (
        has_heads(spec)
        and find_attention_traits(spec.attention).key_permuted
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
        and find_attention_traits(spec.attention).softmax_axis
        and not _hides_keys(spec.attention)
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
    applies=lambda spec: attends(spec) and find_attention_traits(spec.attention).scale_takes == "tensor",
    present=lambda spec: attends(spec) and spec.attention.scale != "literal",
)
def tensor_scale(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The scale is a tensor: a buffer, a parameter, or of one element.

    SDPA's ``scale`` is a number, so a pattern has to refuse a tensor, with a mask as without.
    """
    return with_attention(spec, scale=pen.one_of(("buffer", "parameter", "one_element")))


@near_miss(
    6,
    applies=lambda spec: attends(spec) and find_attention_traits(spec.attention).scale_takes in ("number", "tensor"),
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
        has_scores(spec)
        and not find_attention_traits(spec.attention).own_mask
        and _mask_is(spec, lambda mask: mask.use == "add")
    ),
    present=lambda spec: (
        has_scores(spec)
        and _mask_is(spec, lambda mask: mask.dtype not in ("model", *find_attention_traits(spec.attention).mask_dtypes))
    ),
)
def mask_dtype(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The mask is of another dtype than the scores.

    Added, a wider mask promotes them, and a boolean one adds 1 where SDPA would hide keys by it. In
    ``masked_fill`` and ``where`` true means hidden, in SDPA kept.
    """
    mask = spec.attention.mask or Mask()
    rest = [name for name in ("int64", "float32", "float16", "float64", "int8") if name != spec.dtype]
    dtype = pen.draw_weighted([("bool", 3), *((name, 1) for name in rest)])
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
    applies=lambda spec: (
        spec.attention.mask is not None and attends(spec) and not find_attention_traits(spec.attention).own_mask
    ),
    present=lambda spec: _mask_is(spec, lambda mask: mask.shape not in ("square", "key") and _has_unusual_shape(mask)),
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


def _has_unusual_shape(mask: Mask) -> bool:
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
        and find_attention_traits(a).shared_heads
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
        and find_attention_traits(spec.attention).leading
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


# Memory layouts of the inputs: strides, offsets, overlap, one tensor passed several times.


def _make_layout_near_miss(name: InputLayout, layout: MemoryLayout) -> NearMiss:
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


for _layout_name, _layout in LAYOUTS.items():
    if _layout.weight:
        register_near_miss(_make_layout_near_miss(_layout_name, _layout))


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


# Operators on blocks and layers: shared weights, writes in place, uneven operators.


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
    return replace(spec, layer=spec.layer.with_choices(uneven=True))


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


# Sizes that coincide, and sizes of one and zero.


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


# Sizes and numbers that depend on values: symbols without a value at compile time, or breaks of the graph.


@detour(4, reads_values=True)
def sizes_of_values(pen: Pen) -> Choices:
    """Rows picked, cut, split or repeated as their values say, or counted and read as a Python number.

    No guard can be made of such a size: what is assumed of it (not 0, not 1, no more than another, divisible) must hold
    for all of them, with ``torch._check`` or without.
    """
    return {
        "by": pen.one_of(("masked", "nonzero", "sliced", "split", "repeated", "counted", "made", "unique")),
        "checked": pen.chance(60),
        "few": pen.chance(30),
    }


# Input values at the limits of kernels: scales, ties, constants, NaN and infinities.


def _make_values_near_miss(name: str) -> NearMiss:
    return NearMiss(
        name,
        VALUES[name].summary,
        VALUES[name].weight,
        applies=lambda spec: spec.embedding is None,
        present=lambda spec: spec.values == name,
        change=lambda pen, spec: replace(spec, values=name),
        family="values",
    )


for _values_name, _values in VALUES.items():
    if _values.weight:
        register_near_miss(_make_values_near_miss(_values_name))
