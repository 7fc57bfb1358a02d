"""Names and expressions of the inputs that a case's ``make`` returns, masks included."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fuzzcompile.fuzz.generation.spec import (
    Attention,
    CaseSpec,
    Compile,
    Dims,
    FurtherCall,
    Mask,
    Part,
    ProgramArgument,
    Size,
)
from fuzzcompile.fuzz.idioms.registry import find_attention_traits, idiom, idioms
from fuzzcompile.fuzz.near_misses.near_miss_registry import find_detour
from fuzzcompile.model.compiler_toggles import list_acting
from fuzzcompile.model.contract import AOTI, COMPILE, EXPORTED
from fuzzcompile.model.package_files import get_template
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, fill_expression, format_tuple, join_sizes


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call as source text: numbers, or expressions that read them from a tensor."""

    batch: str
    sequence: str
    source: str
    width: int

    @property
    def tokens(self) -> str:
        """The number of tokens, for code in front of the embedding."""
        return self.sequence if self.sequence.isdigit() else "tokens.shape[1]"

    def dividing(self, count: int) -> int:
        """The most parts, up to ``count``, that the features can be cut into."""
        return next(parts for parts in range(count, 0, -1) if self.width % parts == 0)


def make_fixed_sizes(spec: CaseSpec) -> Sizes:
    """The sizes of the first call as numbers."""
    d = spec.dims
    return Sizes(str(d.batch), str(d.sequence), str(d.keys), d.width)


# Masks. Without near misses every query keeps at least one key.


def find_mask_shape(spec: CaseSpec, mask: Mask, n: Sizes) -> tuple[str, ...]:
    """The mask's shape; without heads the scores are (B, T, S), else (B, H, T, S)."""
    heads = () if spec.attention.layout == "flat" else (str(spec.dims.heads),)
    singles = ("1",) * len(heads)
    shapes: dict[str, tuple[str, ...]] = {
        "square": ("1", *singles, n.sequence, n.source),
        "key": (n.batch, *singles, "1", n.source),
        "matrix": (n.sequence, n.source),
        "heads": (*heads, n.sequence, n.source),
        "row": (n.source,),
        "full": (n.batch, *heads, n.sequence, n.source),
    }
    return shapes[mask.shape]


def render_mask(spec: CaseSpec, n: Sizes, device: str = "") -> str:
    """Source of the mask of ``spec``'s attention; ``device`` (``x.device``) where a module makes it."""
    mask = spec.attention.mask
    assert mask is not None, "only a masked attention has a mask"
    if render_mask_function(spec):
        return f"make_mask({n.batch}, {n.sequence}, {n.source}{', ' + device if device else ''})"
    shape = find_mask_shape(spec, mask, n)
    size, option = format_tuple(shape), _write_dtype(_find_mask_dtype(spec, mask))
    on = f", device={device}" if device else ""
    if mask.dtype == "int64":
        return f"torch.randint(-2, 3, {size})"
    if mask.dtype == "bool":
        return f"torch.ones({size}, dtype=torch.bool{on})" + (".tril()" if _keeps_true(spec, mask) else ".triu(1)")
    if mask.kind == "bias":
        return f"torch.randn({size if len(shape) == 1 else ', '.join(shape)}{option})"
    return f'torch.full({size}, float("-inf"){option}{on}).triu(1)'


def render_mask_function(spec: CaseSpec) -> str:
    """Source of the function that makes the mask, or nothing where an expression does."""
    mask = spec.attention.mask
    if mask is None or spec.layer is not None or mask.dtype == "int64":
        return ""
    paired, hides = mask.shape not in ("row", "key"), mask.kind != "bias" or mask.dtype == "bool"
    # With one entry per key, a triangle would hide keys from every query.
    ruled = mask.kind not in ("bias", "causal") or (hides and (mask.kind == "bias" or not paired))
    if not (ruled or mask.blocked or mask.inside):
        return ""
    shape = find_mask_shape(spec, mask, Sizes("batch", "queries", "keys", spec.dims.width))
    rule = "blocked" if mask.blocked else mask.kind if paired or mask.kind == "alibi" else "padding"
    text = get_template("mask.py.j2").render(
        rule="padding" if rule == "bias" else rule,
        paired=paired,
        shape=format_tuple(shape),
        sizes=", ".join(shape),
        heads=spec.dims.heads,
        slopes=mask.shape in ("heads", "full") and spec.attention.layout != "flat",
        boolean=mask.dtype == "bool",
        keeps=_keeps_true(spec, mask),
        dtype=_find_mask_dtype(spec, mask),
    )
    return text.strip()


def _find_mask_dtype(spec: CaseSpec, mask: Mask) -> str:
    return spec.dtype if mask.dtype in ("model", "bool") else mask.dtype


def _keeps_true(spec: CaseSpec, mask: Mask) -> bool:
    return mask.use == "keep" or not find_attention_traits(spec.attention).has_scores


def list_inputs(spec: CaseSpec, dims: Dims) -> list[tuple[str, str]]:
    """Return the inputs of a call at these sizes; an aliased input is the name of the one before it."""
    spec, tokens = replace(spec, dims=dims), f"torch.randint(0, 32, ({dims.batch}, {dims.sequence}))"
    if spec.embedding:
        inputs = [("tokens", tokens)]
    else:
        names = list_activations(spec)
        inputs = [(name, _render_floating(spec, find_input_shape(spec, name))) for name in names]
        inputs = [inputs[0], ("k", "q"), ("v", "q")] if spec.aliased and len(inputs) == 3 else inputs
    inputs += [(name, _render_extra_input(spec, name)) for name in list_extra_inputs(spec)]
    if takes_targets(spec):
        inputs.append(("targets", f"{tokens}.masked_fill(torch.arange({dims.sequence}) % 3 == 1, -100)"))
    return inputs


def _render_extra_input(spec: CaseSpec, name: str) -> str:
    a, d = spec.attention, spec.dims
    for argument in spec.program.arguments if spec.program is not None else ():
        if argument.name == name:
            return render_argument(argument, resolve_shape(argument.shape, d))
    if name == "memory":
        return _render_floating(spec, (d.batch, d.keys, d.width))
    return render_mask(spec, make_fixed_sizes(spec)) if name == "mask" else find_attention_traits(a).inputs(a, d)[name]


def render_argument(argument: ProgramArgument, shape: tuple[int, ...]) -> str:
    """The expression of an input of a program with these sizes, which neither x nor a parameter is."""
    layout = LAYOUTS.get(argument.layout)
    base = format_tuple(layout.base(shape) if layout else shape)
    option = f"dtype=torch.{argument.dtype}"
    if argument.values:
        numbers = [value if isinstance(value, str) else repr(value) for value in argument.values]
        made = f"repeated({base}, {', '.join(numbers)}, {option})"
    elif argument.dtype == "bool":
        made = f"torch.rand({base}) > 0.5"
    else:
        low, high = (0, 256) if argument.dtype == "uint8" else (-4, 5)
        whole = "int" in argument.dtype
        made = f"torch.{f'randint({low}, {high}, ' if whole else 'randn('}{base}, {option})"
    if layout is None:
        return made
    return f"{f'({made})' if ' > ' in made else made}{layout.view.format(shape=join_sizes(shape))}"


def list_call_dims(spec: CaseSpec) -> list[Dims]:
    """The sizes of each call of the case."""
    return [spec.dims, *(call.dims(spec.dims) for call in spec.compile.calls)]


def resolve_shape(shape: Sequence[str | int], dims: Dims) -> tuple[int, ...]:
    """The sizes of a program's argument as numbers."""
    named = {"B": dims.batch, "T": dims.sequence, "C": dims.width}
    return tuple(named[size] if isinstance(size, str) else size for size in shape)


def find_input_shape(spec: CaseSpec, name: str) -> tuple[int, ...]:
    """The shape of an input of the body, which is one of `list_activations`."""
    a, d = spec.attention, spec.dims
    if name == "x":
        return (d.batch, d.sequence, d.width)
    shared = name != "q"
    length = d.source if shared and a.cross else d.sequence
    if a.layout == "flat":
        return (d.batch, length, d.width)
    heads = spec.key_heads if shared else d.heads
    heads_last = a.layout == "heads_last" or (name == "k" and a.key_permuted)
    middle = (length, heads) if heads_last else (heads, length)
    leading = (2,) if a.leading else ()
    return (*leading, d.batch, *middle, d.head_dim)


def _write_dtype(dtype: str) -> str:
    return "" if dtype == "float32" else f", dtype=torch.{dtype}"


def _render_floating(spec: CaseSpec, shape: tuple[int, ...]) -> str:
    option = _write_dtype(spec.dtype)
    if spec.values is None and spec.inputs == "contiguous":
        return f"torch.randn({join_sizes(shape)}{option}{', requires_grad=True' if spec.backward else ''})"
    layout = LAYOUTS.get(spec.inputs)
    base = layout.base(shape) if layout else shape
    calls = layout.view.format(shape=join_sizes(shape)) if layout else ""
    tensor = f"torch.randn({join_sizes(base)}{option})"
    if spec.values is not None:
        like = f"torch.{spec.dtype}"
        tensor = fill_expression(
            spec.values, tensor, tensor, shape=format_tuple(base), like=like, option=option, dtype=spec.dtype
        )
    calls += ".requires_grad_()" if spec.backward else ""
    wrapped = f"({tensor})" if calls and (" * " in tensor or tensor.startswith("-")) else tensor
    return wrapped + calls


def list_activations(spec: CaseSpec) -> list[str]:
    """The names of what enters the body: x, or query, key and value where they are inputs."""
    return ["x"] if takes_x(spec) else ["q", "k", "v"]


def takes_x(spec: CaseSpec) -> bool:
    """Return whether the body works on an activation, and not on query, key and value that are inputs."""
    return not spec.attends or spec.block is not None or spec.attention.projection is not None


def list_extra_inputs(spec: CaseSpec) -> list[str]:
    """The names of the attention's inputs beside x, or beside query, key and value."""
    a = spec.attention
    if spec.program is not None:
        return [argument.name for argument in spec.program.arguments if not argument.parameter]
    if spec.layer is not None:
        return []
    memory = ["memory"] if a.cross and takes_x(spec) else []
    mask = ["mask"] if a.mask is not None and not a.mask.inside else []
    return [*memory, *mask, *find_attention_traits(a).inputs(a, spec.dims)]


def takes_targets(spec: CaseSpec) -> bool:
    """Return whether the head compares with target tokens."""
    head = spec.head
    wanted = None if head is None else idiom(head.name).traits.targets
    return head is not None and wanted is not None and all(head[choice] == value for choice, value in wanted.items())


# Constraints between choices: incompatible ones are dropped, so that every spec renders to a program that runs.


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
    mask = a.mask
    if mask and a.layout == "flat" and mask.shape == "heads":
        mask = replace(mask, shape="matrix")
    if mask and (mask.dtype == "int64" or mask.shape == "row" or (mask.kind == "bias" and not mask.blocked)):
        mask = replace(mask, inside=False)
    if mask and mask.kind in ("window", "prefix", "documents", "alibi"):
        a = replace(a, cross=False)
    if spec.aliased:
        a = replace(
            a, cross=False, grouping=None, expanded=False, key_permuted=a.key_permuted and a.layout != "heads_first"
        )
    return replace(a, mask=mask)


def _fit_part(spec: CaseSpec, part: Part) -> Part:
    for row in idiom(part.name).traits.fit:
        under = spec.backward if row.under == "backward" else spec.compile.grad
        if under and part[row.choice] != row.unless:
            part = part.with_choices(**{row.choice: row.becomes})
    return part


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
    gradients, inference = spec.backward or how.grad == "enabled", not (spec.backward or how.grad or spec.training)
    how = replace(how, toggles=list_acting(how.toggles, gradients=gradients, inference=inference))
    traits = [idiom(name).traits for name in spec.idioms]
    typed = spec.program or spec.programs  # autocast changes the dtypes that its statements rely on
    if spec.dtype != "float32" or typed or not all(part.autocast for part in traits):
        how = replace(how, autocast=None)
    breaks, recalled = any(part.graph_break for part in traits), any(part.recalled for part in traits)
    depends_on_values = any(find_detour(part).reads_values for _, part in spec.detours)
    how = replace(
        how,
        fullgraph=how.fullgraph and not breaks and not depends_on_values,
        captured=how.captured and (depends_on_values or spec.program is not None),
    )
    # What export does not support: modes, graph breaks, Python state; and gradients under AOTInductor.
    refused = breaks or recalled or spec.training or how.autocast or (how.path == AOTI and spec.backward)
    if refused and how.path in EXPORTED:
        how = replace(how, path=COMPILE)
    if how.path in EXPORTED:
        how = replace(how, mode=None, fullgraph=False, mark=None, captured=False)
    calls = how.calls or ((FurtherCall(sequence="same"),) * 2 if recalled else ())
    if 0 in (spec.dims.batch, spec.dims.sequence) or spec.aliased:
        calls = ()
    fixes = {size for part in traits for size in part.fixes}
    calls = tuple(_fit_call(spec, call, fixes) for call in calls)
    # Only Python state makes calls like the first worth while.
    first = (spec.dims, spec.inputs)
    calls = tuple(
        call
        for call in calls
        if recalled or (call.dims(spec.dims), call.inputs) != first or (call.grad and not spec.backward)
    )
    if calls:
        return replace(how, calls=calls)
    return replace(how, calls=(), dynamic=how.dynamic if spec.state or spec.program else None, mark=None)


def _fit_call(spec: CaseSpec, call: FurtherCall, fixes: Collection[str]) -> FurtherCall:
    if "batch" in fixes:
        call = replace(call, batch="same")
    if "sequence" in fixes:
        call = replace(call, sequence="same")
    if spec.embedding is not None or spec.values is not None or spec.inputs != "contiguous":
        call = replace(call, inputs=spec.inputs)
    if spec.embedding is not None or any(find_detour(part).writes for _, part in spec.detours):
        call = replace(call, grad=False)  # a leaf that requires a gradient may not be written to
    whole = spec.attends and not spec.attention.leading and find_attention_traits(spec.attention).empty
    if whole and not (spec.head or spec.detours or spec.programs or spec.values):  # it runs on nothing
        return call
    batch: Size = "one" if call.batch == "none" else call.batch
    return replace(call, batch=batch, sequence="one" if call.sequence == "none" else call.sequence)
