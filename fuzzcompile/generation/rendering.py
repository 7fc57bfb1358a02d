"""From a spec to the source of its case file. Nothing is drawn here."""

from __future__ import annotations

from functools import lru_cache

from jinja2.environment import TemplateModule

from fuzzcompile.generation.idioms import idiom
from fuzzcompile.generation.inputs import extra_inputs, inputs_of, resolved, takes_targets, takes_x
from fuzzcompile.generation.masks import Sizes, fixed_sizes, mask_expression, mask_function
from fuzzcompile.generation.near_misses.detour_registry import detour_of
from fuzzcompile.generation.registry import form_of
from fuzzcompile.generation.settings import calls_of, description, driver_of, settings_of
from fuzzcompile.generation.spec import Attention, Block, CaseSpec, Dims, Part, Program
from fuzzcompile.generation.tensors import as_tuple, functions_in
from fuzzcompile.templating import expanded, template

# The mask dtypes that promote scores of each dtype (two half formats meet in float32).
_WIDER = {
    "float32": ("float64",),
    "float16": ("float32", "float64"),
    "bfloat16": ("float16", "float32", "float64"),
}

# Marks of parameters that start at 0 or 1, where an error in what is done with them does not show.
_CONSTANT_AT_FIRST = ("Norm(", "nn.Parameter(torch.zeros", "nn.Parameter(torch.ones")


@lru_cache(maxsize=1024)
def render(spec: CaseSpec, *, described: bool = False) -> str:
    """The case file: self-contained, needs torch only, formatted as ``ruff format`` would.

    ``described`` puts the names of its idioms, near misses and choices on top.
    """
    classes = [source.strip() for source in _classes(spec)]
    inputs = inputs_of(spec, spec.dims)
    classes = [*functions_in([expression for _, expression in inputs]), *classes]
    cast = spec.dtype != "float32" and any(mark in source for source in classes for mark in ("nn.Parameter", "self."))
    return template("case.py.j2").render(
        spec=spec,
        description=description(spec) if described else "",
        classes=classes,
        inputs=inputs,
        settings=settings_of(spec),
        calls=calls_of(spec),
        driver=driver_of(spec),
        functional=any("F." in source for source in classes),
        backends=any("sdpa_kernel(" in source for source in classes),
        cast=f".to(torch.{spec.dtype})" if cast else "",
        scattered=any(mark in source for source in classes for mark in _CONSTANT_AT_FIRST),
    )


def _macros(name: str | None) -> TemplateModule | None:
    return idiom(name).load().module if name else None


def _new(spec: CaseSpec, part: Part) -> str:
    """The expression that makes the module of a part."""
    return expanded(_macros(part.name), "new", spec.dims, part)


def _classes(spec: CaseSpec) -> list[str]:
    """The source of every function and class, each after those that it uses; the last is ``Model``."""
    if spec.program is not None:
        return [_program_class(spec, spec.program)]
    d, n, block = spec.dims, _sizes(spec, "x"), spec.block or Block()
    beside = spec.detours or spec.programs
    whole = bool(block.layers > 1 or spec.head or beside or spec.returns_activation)
    alone = spec.block is None and not whole
    used = [spec.embedding, block.norm, block.residual]
    if spec.layer is None:
        used += [spec.attention.position, spec.attention.projection]
    defined = [(name, Part(name)) for name in used if name]
    defined += [(part.name, part) for part in (spec.block and block.feed_forward, spec.layer) if part]
    sources = []
    for name, part in defined:
        source = expanded(_macros(name), "definition", d, n, part)
        if alone and part is spec.layer:
            source = source.replace(f"class {_new(spec, part).partition('(')[0]}(", "class Model(")
        sources += [source] if source else []
    if mask_function(spec):
        sources.append(mask_function(spec))
    if spec.layer is None:
        sources.append(_attention_class(spec, "Model" if alone else "Attention"))
    if spec.block:
        sources.append(_block_class(spec, spec.block, "Block" if whole else "Model"))
    if whole:
        sources.append(_model_class(spec))
    return sources


def _sizes(spec: CaseSpec, x: str) -> Sizes:
    """Numbers; or, if a second call has other sizes, expressions that read them from ``x``."""
    if not spec.compile.calls:
        return fixed_sizes(spec)
    if x == "q":
        source = "k.shape[-1]" if spec.attention.key_permuted else "k.shape[-2]"
        return Sizes("q.shape[0]", "q.shape[-2]", source, spec.dims.width)
    source = "memory.shape[1]" if spec.attention.cross and spec.layer is None else f"{x}.shape[1]"
    return Sizes(f"{x}.shape[0]", f"{x}.shape[1]", source, spec.dims.width)


def _attention_class(spec: CaseSpec, name: str) -> str:
    a, d = spec.attention, spec.dims
    made_of_x = takes_x(spec)
    n = _sizes(spec, "x" if made_of_x else "q")
    value = scale_value(a, d)
    device = "x.device" if made_of_x else "q.device"
    return (
        idiom(a.idiom)
        .load()
        .render(
            a=a,
            d=d,
            n=n,
            name=name,
            arguments=[*(("x",) if made_of_x else ("q", "k", "v")), *extra_inputs(spec)],
            projection=_macros(a.projection),
            position=_macros(a.position),
            norm=_macros(a.norm),
            grouping=_macros(a.grouping),
            rotated=d.width if a.layout == "flat" else d.head_dim,
            takes_x=made_of_x,
            source="memory" if a.cross else "x",
            kv_width=spec.key_heads * d.head_dim,
            arrange={letter: _arrange(spec, n, letter) for letter in "qkv"},
            product="q @ k" if a.key_permuted else "q @ k.transpose(-2, -1)",
            scale_value=value,
            scale=value if a.scale == "literal" else "self.scale",
            promoted=_promotes(spec),
            narrow=bool(a.chosen.get("narrow")),
            drops=a.dropout is not None and form_of(a).has_scores,
            made=mask_expression(spec, n, device) if a.mask and a.mask.inside else None,
            call=_sdpa_arguments(spec, value),
        )
        .strip()
    )


def _sdpa_arguments(spec: CaseSpec, scale: float) -> str:
    a = spec.attention
    choices = (
        ("q, k, v", True),
        ("mask", a.mask is not None),
        (f"dropout_p={a.dropout}", a.dropout is not None),
        ("is_causal=True", a.is_causal and a.mask is None),
        (f"scale={scale}", bool(a.chosen.get("scaled")) or "factor" in a.chosen),
    )
    arguments = [argument for argument, present in choices if present]
    if a.grouping and (shared := idiom(a.grouping).traits.sdpa_argument):
        arguments.append(shared)
    return ", ".join(arguments)


def _arrange(spec: CaseSpec, n: Sizes, letter: str) -> str:
    """The calls that bring query, key or value to (B, H, T, D), or (B, H, D, T) for a permuted key."""
    a, d = spec.attention, spec.dims
    if a.layout == "flat":
        return ""
    permuted = letter == "k" and a.key_permuted
    shared = letter != "q"
    heads = spec.key_heads if shared else d.heads
    length = n.source if shared and a.cross else n.sequence
    calls = ""
    if takes_x(spec):
        calls += f".view({n.batch}, {length}, {heads}, {d.head_dim})"
    if permuted:
        calls += ".permute(0, 2, 3, 1)"
    elif a.layout == "heads_last":
        calls += ".permute(0, 2, 1, 3)"
    if shared and a.expanded:
        calls += f".expand(-1, {d.heads}, -1, -1)"
    return calls


def scale_value(a: Attention, d: Dims) -> float:
    """The scale that keeps scores near 1, from the number of features summed; or the odd one that was drawn."""
    root = float((d.width if a.layout == "flat" else d.head_dim) ** 0.5)
    value = {"factor": 1 / root, "divisor": root, "of_each": root**-0.5}[form_of(a).scale]
    return float(a.chosen["factor"]) if "factor" in a.chosen else round(value, 4)


def _promotes(spec: CaseSpec) -> bool:
    """Return whether the added mask promotes the scores to a wider dtype than the value's."""
    mask = spec.attention.mask
    if mask is None or mask.use != "add" or not form_of(spec.attention).has_scores:
        return False
    return mask.dtype in _WIDER[spec.dtype]


def _body(spec: CaseSpec) -> str:
    """The expression that makes the attention, or the layer in its place."""
    return _new(spec, spec.layer) if spec.layer else "Attention()"


def _block_class(spec: CaseSpec, block: Block, name: str) -> str:
    """The block; a single one is the model itself."""
    embedding = _macros(spec.embedding) if name == "Model" else None
    extra = extra_inputs(spec)
    return template("block.py.j2").render(
        d=spec.dims,
        n=_sizes(spec, "tokens"),
        name=name,
        arguments=["tokens" if embedding else "x", *extra],
        more="".join(f", {argument}" for argument in extra),
        embedding=embedding,
        attention=_body(spec),
        norm=_new(spec, Part(block.norm)) if block.norm else None,
        placement=block.placement,
        residual=_macros(block.residual),
        in_place=block.in_place,
        feed_forward=_new(spec, block.feed_forward) if block.feed_forward else None,
    )


def _program_class(spec: CaseSpec, program: Program) -> str:
    """A program in the place of the model."""
    parameters = [argument for argument in program.arguments if argument.parameter]
    return template("program.py.j2").render(
        parameters=[(argument.name, as_tuple(resolved(argument.shape, spec.dims))) for argument in parameters],
        arguments=["x", *extra_inputs(spec)],
        statements=program.statements,
        outputs=program.outputs,
    )


def _beside(spec: CaseSpec, where: str, name: str, width: int) -> list[str]:
    """The statements at a place beside the body, over the activation of that name."""
    detours = [detour_of(part).statements(name, part, width) for place, part in spec.detours if place == where]
    return [*detours, *("\n".join(program.statements) for place, program in spec.programs if place == where)]


def _model_class(spec: CaseSpec) -> str:
    """The module around the body: embedding, detours, a stack of blocks, a head, several outputs."""
    block, extra, a = spec.block, extra_inputs(spec), spec.attention
    embedding = _macros(spec.embedding)
    of_x = takes_x(spec)
    entering = "x" if of_x else "q"
    arguments = ", ".join([*(("x",) if of_x else ("q", "k", "v")), *extra])
    outputs = ["x"]
    if block is not None and block.layers > 1:
        blocks = f"[Block()] * {block.layers}" if block.tied else f"Block() for _ in range({block.layers})"
        parts = [("blocks", f"nn.ModuleList({blocks})")]
        calls = [f"for block in self.blocks:\n    x = block({arguments})"]
    elif block is not None:
        parts, calls = [("block", "Block()")], [f"x = self.block({arguments})"]
    else:
        name = "layer" if spec.layer else "attention"
        returned = {"": [], "weights": ["weights"], "keys": ["keys_out", "values_out"]}["" if spec.layer else a.returns]
        outputs += returned
        parts, calls = [(name, _body(spec))], [f"{', '.join(outputs)} = self.{name}({arguments})"]
    if spec.returns_activation:
        calls.insert(0, f"given = {entering}")
        outputs.append("given")
    head = _macros(spec.head.name) if spec.head else None
    targets = ["targets"] if takes_targets(spec) else []
    inputs = ["tokens"] if embedding else ["x"] if of_x else ["q", "k", "v"]
    width = spec.dims.width if of_x or a.layout == "flat" else spec.dims.head_dim
    return template("model.py.j2").render(
        d=spec.dims,
        n=_sizes(spec, "tokens" if embedding else "x"),
        p=spec.head,
        tied=bool(embedding),
        arguments=[*inputs, *extra, *targets],
        embedding=embedding,
        parts=parts,
        calls=calls,
        before=_beside(spec, "before", entering, width),
        after=_beside(spec, "after", "x", width),
        head=head,
        result=", ".join(outputs),
    )
