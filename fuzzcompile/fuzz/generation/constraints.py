"""Constraints between choices: incompatible ones are dropped, so that every spec renders to a program that runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fuzzcompile.compiler.facts.inductor_toggles import find_toggle
from fuzzcompile.fuzz.generation.inputs import takes_x
from fuzzcompile.fuzz.generation.spec import Attention, CaseSpec, Compile, FurtherCall, Mask, Part, Size
from fuzzcompile.fuzz.idioms.registry import find_attention_traits, idiom, idioms
from fuzzcompile.fuzz.near_misses.near_miss_registry import find_detour
from fuzzcompile.model.contract import AOTI, COMPILE


def fit_spec(spec: CaseSpec) -> CaseSpec:
    """Return the spec without choices that do not fit; a spec that fits comes back unchanged."""
    if spec.attends:
        spec = replace(spec, attention=_fit_attention(spec))
    else:
        simplest = Attention(idioms("attention")[0].name)
        spec = replace(spec, attention=simplest, layer=spec.layer and _fit_part(spec, spec.layer))
    spec = _fit_sizes(spec)
    return replace(_fit_program(spec), compile=_fit_compile(spec))


def _fit_attention(spec: CaseSpec) -> Attention:
    a = spec.attention
    form, made_of_x = find_attention_traits(a), takes_x(spec)
    if form.layouts and a.layout not in form.layouts:
        a = replace(a, layout=form.layouts[0])
    if a.layout == "heads_first" and made_of_x:
        a = replace(a, layout="heads_last")
    features = spec.dims.width if a.layout == "flat" else spec.dims.head_dim
    if features % 2 or a.key_permuted:
        a = replace(a, position=None)
    shares = made_of_x and a.projection is None
    if a.layout == "flat" or shares or spec.dims.heads == 1 or a.expanded or not form.shared_heads:
        a = replace(a, grouping=None, expanded=a.expanded and a.layout != "flat" and not shares)
    if a.grouping and form.has_scores and idiom(a.grouping).traits.sdpa_argument:
        a = replace(a, grouping=idioms("grouping")[0].name)
    a = replace(a, softcap=a.softcap and form.softcap, sink=a.sink and form.sink and a.softmax_axis == -1)
    if spec.block is not None or spec.head is not None:
        a = replace(a, returns="")
    if not form.has_scores and not spec.training:
        a = replace(a, dropout=None)
    if a.leading:
        a = replace(a, grouping=None, position=None, norm=None, cross=False, layout="heads_first", expanded=False)
    mask = _fit_mask(a) if a.mask else None
    if mask and mask.kind in ("window", "prefix", "documents", "alibi"):
        a = replace(a, cross=False)
    if spec.aliased:
        a = replace(
            a, cross=False, grouping=None, expanded=False, key_permuted=a.key_permuted and a.layout != "heads_first"
        )
    return replace(a, mask=mask)


def _fit_mask(a: Attention) -> Mask:
    mask = a.mask
    assert mask is not None
    if a.layout == "flat" and mask.shape == "heads":
        mask = replace(mask, shape="matrix")
    if mask.dtype == "int64" or mask.shape == "row" or (mask.kind == "bias" and not mask.blocked):
        mask = replace(mask, inside=False)
    return mask


def _fit_part(spec: CaseSpec, part: Part) -> Part:
    return idiom(part.name).traits.fit(part, spec)


def _fit_sizes(spec: CaseSpec) -> CaseSpec:
    """Only a cross attention has another number of keys than queries; empty inputs get no detours and no head."""
    d = spec.dims
    if not spec.attends or not spec.attention.cross:
        spec = replace(spec, dims=replace(d, source=0))
    if d.batch and d.sequence:
        return spec
    if not spec.attends or spec.attention.leading or not find_attention_traits(spec.attention).empty:
        return replace(spec, dims=replace(spec.dims, batch=d.batch or 1, sequence=d.sequence or 1))
    return replace(spec, head=None, detours=(), programs=(), values=None, inputs="contiguous")


def _fit_program(spec: CaseSpec) -> CaseSpec:
    block, of_x = spec.block, takes_x(spec)
    if block is not None:
        in_place = block.in_place and not (spec.backward or block.residual or block.placement != "pre")
        feed_forward = block.feed_forward and _fit_part(spec, block.feed_forward)
        tied = block.tied and block.layers > 1
        spec = replace(spec, block=replace(block, feed_forward=feed_forward, in_place=in_place, tied=tied))
    if spec.head is not None:
        spec = replace(spec, head=_fit_part(spec, spec.head))
    spec = replace(spec, aliased=False) if of_x else replace(spec, head=None)
    if spec.backward:
        spec = replace(spec, detours=tuple(pair for pair in spec.detours if find_detour(pair[1]).has_gradient(pair[1])))
    if spec.embedding is not None:
        spec = replace(spec, values=None, inputs="contiguous")
    if not alters_inputs(spec):
        spec = replace(spec, detours=tuple(pair for pair in spec.detours if not find_detour(pair[1]).writes))
    return spec


def alters_inputs(spec: CaseSpec) -> bool:
    """Return whether the inputs may be written to: not where elements overlap, or are shared between inputs."""
    return spec.inputs not in ("expanded", "offset") and not spec.aliased and spec.compile.grad != "inference_mode"


def _fit_compile(spec: CaseSpec) -> Compile:
    how = spec.compile
    if spec.backward:
        how = replace(how, grad=None)
    if spec.backward or how.grad or spec.training:
        how = replace(how, toggles=tuple(name for name in how.toggles if not find_toggle(name).inference))
    traits = [idiom(name).traits for name in spec.idioms]
    typed = spec.program or spec.programs  # autocast changes the dtypes that its statements rely on
    if spec.dtype != "float32" or typed or not all(part.autocast for part in traits):
        how = replace(how, autocast=None)
    if any(part.graph_break for part in traits) or _depends_on_values(spec):
        how = replace(how, fullgraph=False)
    return _fit_calls(spec, _fit_path(spec, replace(how, captured=how.captured and _depends_on_values(spec))))


def _depends_on_values(spec: CaseSpec) -> bool:
    """Return whether sizes or numbers in the program depend on the values of a tensor."""
    return any(find_detour(part).reads_values for _, part in spec.detours)


def _fit_path(spec: CaseSpec, how: Compile) -> Compile:
    """Drop what export does not support: modes, graph breaks, Python state; and gradients under AOTInductor."""
    if how.path == COMPILE:
        return how
    traits = [idiom(name).traits for name in spec.idioms]
    breaks = any(part.graph_break or part.recalled for part in traits)
    if breaks or spec.training or how.autocast or (how.path == AOTI and spec.backward):
        return replace(how, path=COMPILE)
    return replace(how, mode=None, fullgraph=False, mark=None, captured=False)


def _fit_calls(spec: CaseSpec, how: Compile) -> Compile:
    """Keep sizes in further calls that a part is made for; drop calls like the first, unless there is Python state."""
    fixes = {size for name in spec.idioms for size in idiom(name).traits.fixes}
    recalled = any(idiom(name).traits.recalled for name in spec.idioms)
    calls = how.calls or ((FurtherCall(sequence="same"),) * 2 if recalled else ())
    if 0 in (spec.dims.batch, spec.dims.sequence) or spec.aliased:
        calls = ()
    calls = tuple(_fit_call(spec, call, fixes) for call in calls)
    calls = tuple(call for call in calls if recalled or not _repeats(spec, call))
    return replace(how, calls=calls) if calls else replace(how, calls=(), dynamic=None, mark=None)


def _fit_call(spec: CaseSpec, call: FurtherCall, fixes: Collection[str]) -> FurtherCall:
    if "batch" in fixes:
        call = replace(call, batch="same")
    if "sequence" in fixes:
        call = replace(call, sequence="same")
    if spec.embedding is not None or spec.values is not None or spec.inputs != "contiguous":
        call = replace(call, inputs=spec.inputs)
    if spec.embedding is not None or any(find_detour(part).writes for _, part in spec.detours):
        call = replace(call, grad=False)  # a leaf that requires a gradient may not be written to
    if _runs_on_nothing(spec):
        return call
    batch: Size = "one" if call.batch == "none" else call.batch
    return replace(call, batch=batch, sequence="one" if call.sequence == "none" else call.sequence)


def _repeats(spec: CaseSpec, call: FurtherCall) -> bool:
    """Return whether a call is like the first."""
    return call.dims(spec.dims) == spec.dims and call.inputs == spec.inputs and (spec.backward or not call.grad)


def _runs_on_nothing(spec: CaseSpec) -> bool:
    whole = spec.attends and not spec.attention.leading and find_attention_traits(spec.attention).empty
    return whole and not (spec.head or spec.detours or spec.programs or spec.values)
