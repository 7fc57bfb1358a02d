"""Near misses: small operators that change an idiom so that a rewrite should no longer apply.

Each docstring says what the operator changes, which rewrite that brushes against, and why the rewrite
must stay away or act differently. Operators are drawn independently, in the order of `NEAR_MISSES`;
whether a case bears the mark of one is read off its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzzcompile.generation.drawing import Draw, chance, one_of, weighted
from fuzzcompile.generation.spec import MARKS, Attention, CaseSpec, Mask, MaskShape, MaskUse

Predicate = Callable[[CaseSpec], bool]
Change = Callable[[Draw, CaseSpec], CaseSpec]


@dataclass(frozen=True)
class NearMiss:
    """An operator: drawn in ``percent`` of the cases that it ``applies`` to."""

    name: str
    summary: str
    percent: int
    applies: Predicate
    change: Change


NEAR_MISSES: list[NearMiss] = []


def apply_near_misses(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """The case after the operators that chance picks."""
    for operator in NEAR_MISSES:
        hit = chance(draw, operator.percent)
        if hit and operator.applies(spec):
            spec = operator.change(draw, spec)
    return spec


def near_miss(percent: int, *, applies: Predicate, present: Predicate) -> Callable[[Change], Change]:
    """Register the decorated change as an operator; ``present`` recognises what it leaves in the data."""

    def decorate(change: Change) -> Change:
        summary = (change.__doc__ or "").strip().partition("\n")[0]
        NEAR_MISSES.append(NearMiss(change.__name__, summary, percent, applies, change))
        MARKS[change.__name__] = present
        return change

    return decorate


def _attention(spec: CaseSpec, **changes: Any) -> CaseSpec:
    return replace(spec, attention=replace(spec.attention, **changes))


def _dims(spec: CaseSpec, **changes: int) -> CaseSpec:
    return replace(spec, dims=replace(spec.dims, **changes))


def _has_scores(spec: CaseSpec) -> bool:
    """Whether the scores are written out, and not within ``F.scaled_dot_product_attention``."""
    return spec.attention.idiom != "attention_sdpa"


def _has_heads(spec: CaseSpec) -> bool:
    return spec.attention.layout != "flat"


def _hidden_keys(attention: Attention) -> bool:
    """Whether the mask takes keys out entirely; over another axis a whole line would be −inf."""
    return attention.mask is not None and (attention.mask.causal or attention.mask.dtype == "bool")


@near_miss(5, applies=lambda spec: True, present=lambda spec: spec.dims.batch == 1)
def batch_one(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """A batch of one.

    Matmul then takes no copy of permuted operands, so that the graph differs from the one which a pattern
    was traced with at batch 2 (hence the ``_bs1`` variants); and (1, …) broadcasts where (B, …) does not.
    """
    return _dims(spec, batch=1)


@near_miss(22, applies=_has_heads, present=lambda spec: _has_heads(spec) and spec.dims.sequence == spec.dims.heads)
def sequence_is_heads(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """As many tokens as heads.

    (B, H, T, D) and (B, T, H, D) are then the same shape, and no check of shapes tells a rewrite that it
    took the one for the other.
    """
    return _dims(spec, sequence=spec.dims.heads)


@near_miss(8, applies=lambda spec: True, present=lambda spec: spec.dims.sequence == spec.dims.head_dim)
def sequence_is_head_dim(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """As many tokens as features of a head: a key and its transpose have the same shape."""
    return _dims(spec, sequence=spec.dims.head_dim)


@near_miss(
    16,
    applies=lambda spec: _has_scores(spec) and _has_heads(spec),
    present=lambda spec: spec.attention.key_permuted,
)
def key_permuted(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """The key goes from (B, T, H, D) straight to (B, H, D, T) by one permute.

    The SDPA patterns look for ``transpose(-2, -1)``, in ATen a permute as well: a pattern that takes any
    permute for that one hands SDPA a key whose heads and tokens are swapped.
    """
    return _attention(spec, key_permuted=True)


@near_miss(
    14,
    applies=lambda spec: _has_scores(spec) and not _hidden_keys(spec.attention),
    present=lambda spec: spec.attention.softmax_axis != -1,
)
def softmax_axis(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """Softmax over queries, heads or batch.

    SDPA normalises over keys alone, so no SDPA pattern may take it, whatever the sizes.
    """
    axes = (-2, 0, 1) if _has_heads(spec) else (-2, 0)
    return _attention(spec, softmax_axis=one_of(draw, axes))


@near_miss(7, applies=_has_scores, present=lambda spec: spec.attention.scale != "literal")
def tensor_scale(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """The scale is a tensor: a buffer, a parameter, or of one element.

    SDPA's ``scale`` is a number, so a pattern has to refuse a tensor, with a mask as without.
    """
    return _attention(spec, scale=one_of(draw, ("buffer", "parameter", "one_element")))


@near_miss(
    30,
    applies=lambda spec: spec.attention.mask is not None and _has_scores(spec),
    present=lambda spec: _has_scores(spec) and _mask_is(spec, lambda mask: mask.dtype != "model"),
)
def mask_dtype(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """The mask is of another dtype than the scores.

    Added, a wider mask promotes them, and a boolean one adds 1 where SDPA would hide keys by it. In
    ``masked_fill`` and ``where`` true means hidden, in SDPA kept.
    """
    mask = spec.attention.mask or Mask()
    other = [name for name in ("int64", "float32", "float16", "float64") if name != spec.dtype]
    kinds = [("bool", 3), *((name, 1) for name in other)]
    dtype = weighted(draw, kinds)
    if dtype != "bool":
        return _attention(spec, mask=replace(mask, dtype=dtype, causal=mask.causal and dtype != "int64"))
    fills = spec.attention.softmax_axis == -1
    use: MaskUse = one_of(draw, ("fill", "where", "add")) if fills else "add"
    return _attention(spec, mask=replace(mask, dtype="bool", use=use))


@near_miss(
    30,
    applies=lambda spec: spec.attention.mask is not None,
    present=lambda spec: _mask_is(spec, lambda mask: mask.shape not in ("square", "key")),
)
def mask_rank(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """A mask of rank 1, 2 or 3 that broadcasts, or one with an entry for every score.

    The patterns were traced with (1, 1, T, T) and (B, 1, 1, T), and SDPA broadcasts by rules of its own.
    """
    mask = spec.attention.mask or Mask()
    shapes: list[MaskShape] = ["matrix", "full"]
    if _has_heads(spec):
        shapes.append("heads")
    if not mask.causal and _has_scores(spec):
        shapes.append("row")
    return _attention(spec, mask=replace(mask, shape=one_of(draw, shapes)))


@near_miss(
    20,
    applies=lambda spec: _has_scores(spec) and not spec.training,
    present=lambda spec: bool(spec.attention.dropout),
)
def eval_dropout(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """Dropout between softmax and the value, in eval mode.

    It does nothing, but may leave a copy in the graph, by which other patterns match than the plain ones.
    """
    return _attention(spec, dropout=one_of(draw, (0.1, 0.5)))


def _can_expand(spec: CaseSpec) -> bool:
    source_is_shared = spec.block is not None and spec.attention.projection is None
    return _has_heads(spec) and spec.dims.heads > 1 and not source_is_shared


@near_miss(7, applies=_can_expand, present=lambda spec: spec.attention.expanded)
def keys_expanded(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """One head of keys and values expanded to all heads, as multi-query attention does it.

    Their stride is 0: a rewrite that wants contiguous operands, or writes into them, has to copy first.
    """
    return _attention(spec, expanded=True)


@near_miss(
    20,
    applies=lambda spec: _has_scores(spec) and spec.block is None and spec.attention.projection is None,
    present=lambda spec: spec.attention.returns_weights,
)
def weights_returned(draw: Draw, spec: CaseSpec) -> CaseSpec:
    """The attention weights are an output too.

    SDPA does not return them, so a pattern may only match where nothing else uses them.
    """
    return _attention(spec, returns_weights=True)


def _mask_is(spec: CaseSpec, holds: Callable[[Mask], bool]) -> bool:
    return spec.attention.mask is not None and holds(spec.attention.mask)
