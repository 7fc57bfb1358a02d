"""From a spec to the source of its case file. Nothing is drawn here."""

from __future__ import annotations

from typing import Any

from fuzzcompile.generation.idioms import idiom
from fuzzcompile.generation.masks import mask_expression
from fuzzcompile.generation.spec import Attention, Block, CaseSpec, Dims
from fuzzcompile.templating import environment

# The mask dtypes that promote scores of each dtype (two half formats meet in float32).
_WIDER = {
    "float32": ("float64",),
    "float16": ("float32", "float64"),
    "bfloat16": ("float16", "float32", "float64"),
}


def render(spec: CaseSpec) -> str:
    """The case file: self-contained, needs torch only, formatted as ``ruff format`` would."""
    classes = [_attention_class(spec)]
    if spec.block:
        classes = [*_norm_classes(spec.block, spec.dims), *classes, *_block_classes(spec, spec.block)]
    inputs = _inputs(spec)
    return (
        environment()
        .get_template("case.py.j2")
        .render(
            spec=spec,
            classes=[source.strip() for source in classes],
            inputs=inputs,
            functional=any("F." in source for source in classes),
            cast=f".to(torch.{spec.dtype})" if spec.dtype != "float32" and _has_state(spec) else "",
        )
    )


def _macros(name: str | None) -> Any:
    return environment().get_template(idiom(name).template).module if name else None


def _has_state(spec: CaseSpec) -> bool:
    """Whether the model holds floating parameters or buffers, and so has to be cast."""
    attention = spec.attention
    block = spec.block or Block()
    parts = (attention.projection, block.norm, block.feed_forward, spec.embedding)
    return any(parts) or attention.scale != "literal"


def _arguments(spec: CaseSpec, first: tuple[str, ...]) -> list[str]:
    return [*first, "mask"] if spec.attention.mask else [*first]


def _takes_x(spec: CaseSpec) -> bool:
    return spec.block is not None or spec.attention.projection is not None


def _attention_class(spec: CaseSpec) -> str:
    a, d = spec.attention, spec.dims
    template = environment().get_template(idiom(a.idiom).template)
    return template.render(
        a=a,
        d=d,
        name="Attention" if spec.block else "Model",
        arguments=_arguments(spec, ("x",) if _takes_x(spec) else ("q", "k", "v")),
        projection=_macros(a.projection),
        takes_x=_takes_x(spec),
        kv_width=d.head_dim if a.expanded else d.width,
        arrange={letter: _arrange(spec, letter) for letter in "qkv"},
        product="q @ k" if a.key_permuted else "q @ k.transpose(-2, -1)",
        scale_value=_scale_value(a, d),
        scale=_scale_value(a, d) if a.scale == "literal" else "self.scale",
        promoted=_promotes(spec),
    )


def _arrange(spec: CaseSpec, letter: str) -> str:
    """The calls that bring query, key or value to (B, H, T, D), or (B, H, D, T) for a permuted key."""
    a, d = spec.attention, spec.dims
    if a.layout == "flat":
        return ""
    permuted = letter == "k" and a.key_permuted
    expanded = letter != "q" and a.expanded
    calls = ""
    if _takes_x(spec):
        calls += f".view({d.batch}, {d.sequence}, {1 if expanded else d.heads}, {d.head_dim})"
    if permuted:
        calls += ".permute(0, 2, 3, 1)"
    elif a.layout == "heads_last":
        calls += ".permute(0, 2, 1, 3)"
    if expanded:
        last = (d.head_dim, d.sequence) if permuted else (d.sequence, d.head_dim)
        calls += f".expand({d.batch}, {d.heads}, {last[0]}, {last[1]})"
    return calls


def _scale_value(a: Attention, d: Dims) -> float:
    """Keeps the scores near 1: the inverse square root of what is summed, or its reciprocal."""
    root = float((d.width if a.layout == "flat" else d.head_dim) ** 0.5)
    return round(1 / root if a.idiom == "attention_mul" else root, 4)


def _promotes(spec: CaseSpec) -> bool:
    """Whether adding the mask leaves the scores wider than the value they are to be multiplied with."""
    mask = spec.attention.mask
    if mask is None or mask.use != "add" or spec.attention.idiom == "attention_sdpa":
        return False
    return mask.dtype in _WIDER[spec.dtype]


def _norm_classes(block: Block, d: Dims) -> list[str]:
    macros = _macros(block.norm)
    return [macros.definition(d.width)] if hasattr(macros, "definition") else []


def _block_classes(spec: CaseSpec, block: Block) -> list[str]:
    """The block, and around several of them the stack; a single block is the model itself."""
    single = block.layers == 1
    norm, feed_forward = _macros(block.norm), _macros(block.feed_forward)
    embedding = _macros(spec.embedding)
    outer = _arguments(spec, ("tokens",) if embedding else ("x",))
    common = {"d": spec.dims, "masked": spec.attention.mask is not None}
    sources = [
        environment()
        .get_template("block.py.j2")
        .render(
            **common,
            name="Model" if single else "Block",
            arguments=outer if single else _arguments(spec, ("x",)),
            embedding=embedding if single else None,
            norm=norm.new(spec.dims.width) if norm else None,
            norm_first=block.norm_first,
            feed_forward=feed_forward.new(spec.dims.width) if feed_forward else None,
        )
    ]
    if not single:
        stack = environment().get_template("stack.py.j2")
        sources.append(stack.render(**common, arguments=outer, embedding=embedding, layers=block.layers))
    return sources


def _inputs(spec: CaseSpec) -> list[tuple[str, str]]:
    """The names and expressions of the inputs that ``make`` returns."""
    d = spec.dims
    if spec.embedding:
        inputs = [("tokens", f"torch.randint(0, 32, ({d.batch}, {d.sequence}))")]
    elif _takes_x(spec):
        inputs = [("x", _randn(spec, (d.batch, d.sequence, d.width)))]
    else:
        inputs = [(letter, _randn(spec, _input_shape(spec, letter))) for letter in "qkv"]
    if spec.attention.mask:
        inputs.append(("mask", mask_expression(spec)))
    return inputs


def _input_shape(spec: CaseSpec, letter: str) -> tuple[int, ...]:
    a, d = spec.attention, spec.dims
    if a.layout == "flat":
        return (d.batch, d.sequence, d.width)
    heads = 1 if letter != "q" and a.expanded else d.heads
    heads_last = a.layout == "heads_last" or (letter == "k" and a.key_permuted)
    middle = (d.sequence, heads) if heads_last else (heads, d.sequence)
    return (d.batch, *middle, d.head_dim)


def _randn(spec: CaseSpec, shape: tuple[int, ...]) -> str:
    options = [str(size) for size in shape]
    if spec.dtype != "float32":
        options.append(f"dtype=torch.{spec.dtype}")
    if spec.backward:
        options.append("requires_grad=True")
    return f"torch.randn({', '.join(options)})"
