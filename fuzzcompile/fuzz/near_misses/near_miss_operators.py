"""The near misses of ``near_misses.toml``, with the changes and marks that a row cannot say."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

from fuzzcompile.fuzz.generation.spec import CaseSpec, Mask, MaskShape, MaskUse, Pen
from fuzzcompile.fuzz.idioms.registry import draw_choices, find_attention_traits, list_traits
from fuzzcompile.fuzz.near_misses.near_miss_registry import (
    Change,
    Detour,
    NearMiss,
    Predicate,
    read_near_miss,
    register_detour,
    register_near_miss,
    with_entries,
)
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES


def _change_softmax_axis(pen: Pen, spec: CaseSpec) -> CaseSpec:
    axes = (-2, 0, 1) if "heads" in list_traits(spec) else (-2, 0)
    return with_entries(spec, "attention", softmax_axis=pen.one_of(axes))


def _with_mask(spec: CaseSpec, **changes: Any) -> CaseSpec:
    return with_entries(spec, "attention", mask=replace(spec.attention.mask or Mask(), **changes))


def _mask_is(holds: Callable[[CaseSpec, Mask], bool]) -> Predicate:
    return lambda spec: spec.attends and spec.attention.mask is not None and holds(spec, spec.attention.mask)


def _change_mask_dtype(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask = spec.attention.mask or Mask()
    rest = [name for name in ("int64", "float32", "float16", "float64", "int8") if name != spec.dtype]
    dtype = pen.draw_weighted([("bool", 3), *((name, 1) for name in rest)])
    if dtype in ("int64", "int8"):
        return _with_mask(spec, kind="bias", dtype="int64", inside=False)
    if dtype != "bool":
        return _with_mask(spec, dtype=dtype)
    fills = spec.attention.softmax_axis == -1
    use: MaskUse = pen.one_of(("fill", "where", "add")) if fills else "add"
    kind = "causal" if mask.kind in ("bias", "alibi") and mask.shape != "key" else mask.kind
    return _with_mask(spec, kind=kind, dtype="bool", use=use)


def _has_other_dtype(spec: CaseSpec, mask: Mask) -> bool:
    traits = find_attention_traits(spec.attention)
    return traits.has_scores and mask.dtype not in ("model", *traits.mask_dtypes)


def _change_mask_rank(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask, traits = spec.attention.mask or Mask(), list_traits(spec)
    shapes: list[MaskShape] = ["matrix", "full"]
    if "heads" in traits:
        shapes.append("heads")
    if mask.kind in ("bias", "alibi", "padding") and "scores" in traits:
        shapes.append("row")
    return _with_mask(spec, shape=pen.one_of(shapes))


def _has_other_rank(spec: CaseSpec, mask: Mask) -> bool:
    return mask.shape not in ("square", "key") and not (mask.kind == "alibi" and mask.shape == "heads")


def _block_query(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask = spec.attention.mask or Mask()
    return _with_mask(spec, kind=mask.kind if mask.dtype == "bool" else "causal", blocked=True)


def _equate_heads(pen: Pen, spec: CaseSpec) -> CaseSpec:
    return with_entries(with_entries(spec, "attention", cross=False), "dims", sequence=spec.dims.heads)


def _make_heads_one(pen: Pen, spec: CaseSpec) -> CaseSpec:
    if pen.chance(50):
        return with_entries(spec, "dims", heads=1)
    return with_entries(spec, "dims", head_dim=1, heads=max(2, spec.dims.heads))


def _empty(pen: Pen, spec: CaseSpec) -> CaseSpec:
    return with_entries(spec, "dims", **({"sequence": 0} if pen.chance(30) and spec.layer is None else {"batch": 0}))


def _row(change: Change, present: Predicate) -> dict[str, Any]:
    return {"change": change, "present": present}


# What a row cannot say: how the case changes, and how the change is recognised.
_CHANGES = {
    "softmax_axis": _row(_change_softmax_axis, lambda spec: spec.attends and spec.attention.softmax_axis != -1),
    "mask_dtype": _row(_change_mask_dtype, _mask_is(_has_other_dtype)),
    "mask_rank": _row(_change_mask_rank, _mask_is(_has_other_rank)),
    "query_blocked": _row(_block_query, _mask_is(lambda spec, mask: mask.blocked)),
    "sequence_is_heads": _row(
        _equate_heads,
        lambda spec: spec.attends and spec.attention.layout != "flat" and spec.dims.sequence == spec.dims.heads,
    ),
    "sequence_is_head_dim": _row(
        lambda pen, spec: with_entries(spec, "dims", sequence=spec.dims.head_dim),
        lambda spec: spec.dims.sequence == spec.dims.head_dim,
    ),
    "heads_one": _row(_make_heads_one, lambda spec: 1 in (spec.dims.heads, spec.dims.head_dim)),
    "empty": _row(_empty, lambda spec: 0 in (spec.dims.batch, spec.dims.sequence)),
}


def _iter_layouts() -> Iterator[NearMiss]:
    of_heads = {"requires": ("qkv", "heads"), "excludes": ("leading",)}
    for name, layout in LAYOUTS.items():
        row = {"summary": layout.summary, "percent": layout.weight, "family": "memory", "case": {"inputs": name}}
        if layout.weight:
            limits = {"excludes": ("embedding",)} if 3 in layout.ranks else of_heads
            yield read_near_miss(f"inputs_{name}", {**row, **limits})


def _iter_values() -> Iterator[NearMiss]:
    for name, values in VALUES.items():
        row = {"summary": values.summary, "percent": values.weight, "family": "values", "case": {"values": name}}
        if values.weight:
            yield read_near_miss(name, {**row, "excludes": ("embedding",)})


_GENERATED = {"layouts": _iter_layouts, "values": _iter_values}

for _name, _read in tomllib.loads(resources.files(__package__).joinpath("near_misses.toml").read_text("utf-8")).items():
    if _name in _GENERATED:
        for _operator in _GENERATED[_name]():
            register_near_miss(_operator)
    elif "choices" in _read:
        _draw = partial(draw_choices, choices=_read.pop("choices"))
        register_detour(Detour(_name, _read.pop("summary"), _read.pop("percent"), _draw, **_read))
    else:
        register_near_miss(read_near_miss(_name, {**_read, **_CHANGES.get(_name, {})}))
