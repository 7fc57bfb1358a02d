"""Choices that do not go together, and which of them gives way, so that every spec renders to a program that runs."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.idioms import idiom
from fuzzcompile.generation.inputs import takes_x
from fuzzcompile.generation.near_misses.functions import FLAT
from fuzzcompile.generation.spec import Attention, CaseSpec, Compile, Mask, Part
from fuzzcompile.generation.toggles import toggle

_SDPA = ("attention_sdpa", "attention_sdpa_math")
_PLAIN = Attention("attention_mul")
# They write into caches whose dtype autocast does not know.
_CACHES = ("cache_static", "cache_rolling", "cache_growing")
# Operators that have no gradient through them, or write over what a gradient needs.
_NO_GRADIENT = ("input_written", "same_written", "shifted_in_place", "view_reinterpreted")
_WRITTEN = ("input_written", "same_written")


def fitted(spec: CaseSpec) -> CaseSpec:
    """The spec with what does not fit left out; a spec that fits comes back as it is."""
    if spec.layer is None:
        spec = replace(spec, attention=_attention(spec))
    else:
        spec = replace(spec, attention=_PLAIN, layer=_layer(spec, spec.layer))
    spec = _sizes(spec)
    return replace(_program(spec), compile=_compile(spec))


def _attention(spec: CaseSpec) -> Attention:
    a = spec.attention
    form, made_of_x = idiom(a.idiom), takes_x(spec)
    if form.layouts and a.layout not in form.layouts:
        a = replace(a, layout=form.layouts[0])
    if a.layout == "heads_first" and made_of_x:
        a = replace(a, layout="heads_last")
    features = spec.dims.width if a.layout == "flat" else spec.dims.head_dim
    if features % 2 or a.key_permuted:
        a = replace(a, position=None)
    shares = made_of_x and a.projection is None
    if a.layout == "flat" or shares or spec.dims.heads == 1 or a.expanded or a.idiom == "attention_heads_folded":
        a = replace(a, grouping=None, expanded=a.expanded and a.layout != "flat" and not shares)
    if a.grouping == "heads_enabled" and a.idiom not in _SDPA:
        a = replace(a, grouping="heads_repeated")
    if a.idiom in (*_SDPA, "attention_heads_folded", "attention_keys_filled"):
        a = replace(a, softcap=False)
    if a.idiom in (*_SDPA, "attention_heads_folded") or a.softmax_axis != -1:
        a = replace(a, sink=False)
    if spec.block is not None or spec.head is not None:
        a = replace(a, returns="")
    if a.idiom in _SDPA and not spec.training:
        a = replace(a, dropout=None)
    if a.leading:
        a = replace(a, grouping=None, position=None, norm=None, cross=False, layout="heads_first", expanded=False)
    mask = _mask(a) if a.mask else None
    if mask and mask.kind in ("window", "prefix", "documents", "alibi"):
        a = replace(a, cross=False)
    if spec.aliased:
        a = replace(
            a, cross=False, grouping=None, expanded=False, key_permuted=a.key_permuted and a.layout != "heads_first"
        )
    return replace(a, mask=mask)


def _mask(a: Attention) -> Mask:
    mask = a.mask
    assert mask is not None
    if a.layout == "flat" and mask.shape == "heads":
        mask = replace(mask, shape="matrix")
    if mask.dtype == "int64" or mask.shape == "row" or (mask.kind == "bias" and not mask.blocked):
        mask = replace(mask, inside=False)
    return mask


def _layer(spec: CaseSpec, layer: Part) -> Part:
    if spec.backward and layer.name == "cache_static" and layer["write"] != "select_scatter":
        layer = layer.having(write="slice_scatter")  # what a gradient needs may not be overwritten
    if spec.backward and layer.name == "cache_rolling" and layer["move"] == "in_place":
        layer = layer.having(move="cat")
    if layer.name == "cache_static" and layer["kept"] and (spec.backward or spec.compile.grad):
        return layer.having(kept=False)
    return layer


def _sizes(spec: CaseSpec) -> CaseSpec:
    """Keys of another number than queries only in a cross attention; no detours or heads over nothing."""
    d = spec.dims
    if spec.layer is not None or not spec.attention.cross:
        spec = replace(spec, dims=replace(d, source=0))
    if d.batch and d.sequence:
        return spec
    if spec.layer is not None or spec.attention.leading or spec.attention.idiom in ("attention_heads_folded",):
        return replace(spec, dims=replace(spec.dims, batch=d.batch or 1, sequence=d.sequence or 1))
    return replace(spec, head=None, detours=(), values=None, inputs="contiguous")


def _program(spec: CaseSpec) -> CaseSpec:
    block, of_x = spec.block, takes_x(spec)
    if block is not None and block.in_place and (spec.backward or block.residual or block.placement != "pre"):
        spec = replace(spec, block=replace(block, in_place=False))
    if block is not None and block.tied and block.layers == 1:
        spec = replace(spec, block=replace(spec.block or block, tied=False))
    if spec.head and spec.backward and spec.head.name == "head_sampling":
        spec = replace(spec, head=spec.head.having(chosen=False))
    spec = replace(spec, aliased=False) if of_x else replace(spec, head=None)
    if spec.backward:
        spec = replace(spec, detours=tuple(pair for pair in spec.detours if _has_gradient(pair[1])))
    if spec.embedding is not None:
        spec = replace(spec, values=None, inputs="contiguous")
    if spec.inputs in ("expanded", "offset") or spec.aliased or spec.compile.grad == "inference_mode":
        # Elements that overlap may not be written to.
        spec = replace(spec, detours=tuple(pair for pair in spec.detours if pair[1].name not in _WRITTEN))
    return spec


def _has_gradient(detour: Part) -> bool:
    """Whether a gradient flows through the detour, and it overwrites nothing that one needs."""
    if detour.name == "cast_twice":
        return not str(detour["first"]).startswith("int")
    function = str(dict(detour.choices).get("function", ""))
    return detour.name not in _NO_GRADIENT and not any(flat in function for flat in FLAT)


def _compile(spec: CaseSpec) -> Compile:
    how = spec.compile
    if spec.backward:
        how = replace(how, grad=None)
    if spec.backward or how.grad or spec.training:
        how = replace(how, toggles=tuple(name for name in how.toggles if not toggle(name).inference))
    if spec.dtype != "float32" or (spec.layer and spec.layer.name in _CACHES):
        how = replace(how, autocast=None)
    if spec.layer and spec.layer.name == "prefix_looped":
        how = replace(how, fullgraph=False)
    return _second(spec, how)


def _second(spec: CaseSpec, how: Compile) -> Compile:
    """Sizes of the second call stay where the parts are made for those of the first."""
    if how.second is None:
        return how
    parts = [idiom(name) for name in spec.idioms]
    batch, sequence = how.second
    if any("batch" in part.fixes for part in parts):
        batch = spec.dims.batch
    if any("sequence" in part.fixes for part in parts) or 0 in (spec.dims.batch, spec.dims.sequence):
        sequence = spec.dims.sequence
    if 0 in (spec.dims.batch, spec.dims.sequence) or (batch, sequence) == (spec.dims.batch, spec.dims.sequence):
        return replace(how, second=None, dynamic=None)
    return replace(how, second=(batch, sequence))
