"""The names and expressions of the inputs that a case's ``make`` returns."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fuzzcompile.generation.masks import fixed_sizes, mask_expression
from fuzzcompile.generation.near_misses.values import EXPRESSIONS
from fuzzcompile.generation.spec import CaseSpec, Dims, Part

_LARGE = {"float32": "1e4", "bfloat16": "1e4", "float16": "1e2"}
_DENORMAL = {"float32": "1e-40", "bfloat16": "1e-40", "float16": "1e-6"}


def inputs_of(spec: CaseSpec, dims: Dims) -> list[tuple[str, str]]:
    """The inputs of a call at these sizes; an aliased one is the name of the one before it."""
    spec = replace(spec, dims=dims)
    d = dims
    if spec.embedding:
        inputs = [("tokens", f"torch.randint(0, 32, ({d.batch}, {d.sequence}))")]
    elif takes_x(spec):
        inputs = [("x", _floating(spec, (d.batch, d.sequence, d.width)))]
    elif spec.aliased:
        inputs = [("q", _floating(spec, _shape(spec, "q"))), ("k", "q"), ("v", "q")]
    else:
        inputs = [(letter, _floating(spec, _shape(spec, letter))) for letter in "qkv"]
    source = d.source or d.sequence
    made = {
        "memory": lambda: _floating(spec, (d.batch, source, d.width)),
        "mask": lambda: mask_expression(spec, fixed_sizes(spec)),
        "keys": lambda: f"(torch.arange({source}) * 4 < {source} * 3 + 1).long().repeat({d.batch}, 1)",
        "bias": lambda: f"torch.randn(1, 1, {d.sequence}, {source})",
    }
    inputs += [(name, made[name]()) for name in extra_inputs(spec)]
    if spec.head and needs_targets(spec.head):
        ignored = f"torch.arange({d.sequence}) % 3 == 1, -100"
        inputs.append(("targets", f"torch.randint(0, 32, ({d.batch}, {d.sequence})).masked_fill({ignored})"))
    return inputs


def _shape(spec: CaseSpec, letter: str) -> tuple[int, ...]:
    a, d = spec.attention, spec.dims
    shared = letter != "q"
    length = d.source if shared and a.cross else d.sequence
    if a.layout == "flat":
        return (d.batch, length, d.width)
    heads = 1 if shared and a.expanded else d.shared_heads if shared and a.grouping else d.heads
    heads_last = a.layout == "heads_last" or (letter == "k" and a.key_permuted)
    middle = (length, heads) if heads_last else (heads, length)
    leading = (2,) if a.leading else ()
    return (*leading, d.batch, *middle, d.head_dim)


def _floating(spec: CaseSpec, shape: tuple[int, ...]) -> str:
    """A floating tensor of that shape, with the values and the place in memory that the spec asks for."""
    option = "" if spec.dtype == "float32" else f", dtype=torch.{spec.dtype}"
    plain = spec.values is None and spec.inputs == "contiguous"
    if plain:
        grad = ", requires_grad=True" if spec.backward else ""
        return f"torch.randn({_listed(shape)}{option}{grad})"
    base, calls = _placed(spec, shape)
    made = f"torch.randn({_listed(base)}{option})"
    if spec.values is not None:
        made = EXPRESSIONS[spec.values].format(
            randn=made,
            shape=f"({_listed(base)}{',' if len(base) == 1 else ''})",
            option=option,
            dtype=f"torch.{spec.dtype}",
            large=_LARGE[spec.dtype],
            denormal=_DENORMAL[spec.dtype],
        )
    calls += ".requires_grad_()" if spec.backward else ""
    wrapped = f"({made})" if calls and (" * " in made or made.startswith("-")) else made
    return wrapped + calls


def _placed(spec: CaseSpec, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The shape of the tensor that holds the values, and the calls that make one of ``shape`` of it."""
    if spec.inputs == "transposed":
        return (*shape[:-2], shape[-1], shape[-2]), ".transpose(-1, -2)"
    if spec.inputs == "sliced":
        return (*shape[:-1], 2 * shape[-1]), "[..., ::2]"
    if spec.inputs == "offset":
        return (prod(shape) + 1,), f"[1:].view({_listed(shape)})"
    if spec.inputs == "channels_last":
        return shape, ".to(memory_format=torch.channels_last)"
    if spec.inputs == "expanded":
        return (1, *shape[1:]), f".expand({_listed(shape)})"
    return shape, ""


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)


def takes_x(spec: CaseSpec) -> bool:
    """Whether the body works on an activation, and not on query, key and value that are inputs."""
    return spec.layer is not None or spec.block is not None or spec.attention.projection is not None


def extra_inputs(spec: CaseSpec) -> list[str]:
    """The names of what the attention takes beside x, or beside query, key and value."""
    a = spec.attention
    if spec.layer is not None:
        return []
    named = (
        ("memory", a.cross and takes_x(spec)),
        ("mask", a.mask is not None and not a.mask.inside),
        ("keys", a.idiom == "attention_keys_filled"),
        ("bias", bool(a.chosen.get("biased"))),
    )
    return [name for name, given in named if given]


def needs_targets(head: Part) -> bool:
    """Whether the head compares with tokens that are given."""
    return head.name == "head_cross_entropy" or (head.name == "head_log_probabilities" and head["what"] == "tokens")
