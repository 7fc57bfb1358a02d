"""The names and expressions of the inputs that a case's ``make`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.generation.masks import fixed_sizes, mask_expression
from fuzzcompile.generation.registry import form_of, idiom
from fuzzcompile.generation.spec import Argument, CaseSpec, Dims
from fuzzcompile.generation.tensors import LAYOUTS, as_tuple, filled, listed


def inputs_of(spec: CaseSpec, dims: Dims) -> list[tuple[str, str]]:
    """Return the inputs of a call at these sizes; an aliased input is the name of the one before it."""
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
    inputs += [(name, _beside(spec, name)) for name in extra_inputs(spec)]
    if takes_targets(spec):
        ignored = f"torch.arange({d.sequence}) % 3 == 1, -100"
        inputs.append(("targets", f"torch.randint(0, 32, ({d.batch}, {d.sequence})).masked_fill({ignored})"))
    return inputs


def _beside(spec: CaseSpec, name: str) -> str:
    """The expression of an extra input."""
    a, d = spec.attention, spec.dims
    if spec.program is not None:
        return _argument(next(known for known in spec.program.arguments if known.name == name), d)
    if name == "memory":
        return _floating(spec, (d.batch, d.keys, d.width))
    return mask_expression(spec, fixed_sizes(spec)) if name == "mask" else form_of(a).inputs(a, d)[name]


def _argument(argument: Argument, dims: Dims) -> str:
    """The expression of a program's further input: numbers of its dtype."""
    shape = as_tuple(resolved(argument.shape, dims))
    if argument.dtype == "bool":
        return f"torch.rand({shape}) > 0.5"
    if argument.dtype.startswith("int"):
        return f"torch.randint(-4, 5, {shape}, dtype=torch.{argument.dtype})"
    return f"torch.randn({shape}, dtype=torch.{argument.dtype})"


def calls(spec: CaseSpec) -> list[Dims]:
    """The sizes of each call of the case."""
    return [spec.dims, *(call.dims(spec.dims) for call in spec.compile.calls)]


def resolved(shape: Sequence[str | int], dims: Dims) -> tuple[int, ...]:
    """The sizes of a program's argument as numbers."""
    named = {"B": dims.batch, "T": dims.sequence, "C": dims.width}
    return tuple(named[size] if isinstance(size, str) else size for size in shape)


def shape_of_activation(spec: CaseSpec) -> tuple[int, ...]:
    """The shape of the activation that enters the body: x, or the query."""
    d = spec.dims
    return (d.batch, d.sequence, d.width) if takes_x(spec) else _shape(spec, "q")


def _shape(spec: CaseSpec, letter: str) -> tuple[int, ...]:
    a, d = spec.attention, spec.dims
    shared = letter != "q"
    length = d.source if shared and a.cross else d.sequence
    if a.layout == "flat":
        return (d.batch, length, d.width)
    heads = spec.key_heads if shared else d.heads
    heads_last = a.layout == "heads_last" or (letter == "k" and a.key_permuted)
    middle = (length, heads) if heads_last else (heads, length)
    leading = (2,) if a.leading else ()
    return (*leading, d.batch, *middle, d.head_dim)


def _floating(spec: CaseSpec, shape: tuple[int, ...]) -> str:
    """An expression for a floating tensor of that shape, with the values and memory layout that the spec asks for."""
    option = "" if spec.dtype == "float32" else f", dtype=torch.{spec.dtype}"
    plain = spec.values is None and spec.inputs == "contiguous"
    if plain:
        grad = ", requires_grad=True" if spec.backward else ""
        return f"torch.randn({listed(shape)}{option}{grad})"
    layout = LAYOUTS.get(spec.inputs)
    base = layout.base(shape) if layout else shape
    calls = layout.view.format(shape=listed(shape)) if layout else ""
    tensor = f"torch.randn({listed(base)}{option})"
    if spec.values is not None:
        like = f"torch.{spec.dtype}"
        tensor = filled(spec.values, tensor, tensor, shape=as_tuple(base), like=like, option=option, dtype=spec.dtype)
    calls += ".requires_grad_()" if spec.backward else ""
    wrapped = f"({tensor})" if calls and (" * " in tensor or tensor.startswith("-")) else tensor
    return wrapped + calls


def takes_x(spec: CaseSpec) -> bool:
    """Return whether the body works on an activation, and not on query, key and value that are inputs."""
    return not spec.attends or spec.block is not None or spec.attention.projection is not None


def extra_inputs(spec: CaseSpec) -> list[str]:
    """The names of the attention's inputs beside x, or beside query, key and value."""
    a = spec.attention
    if spec.program is not None:
        return [argument.name for argument in spec.program.arguments if not argument.parameter]
    if spec.layer is not None:
        return []
    memory = ["memory"] if a.cross and takes_x(spec) else []
    mask = ["mask"] if a.mask is not None and not a.mask.inside else []
    return [*memory, *mask, *form_of(a).inputs(a, spec.dims)]


def takes_targets(spec: CaseSpec) -> bool:
    """Return whether the head compares with target tokens."""
    return spec.head is not None and idiom(spec.head.name).traits.targets(spec.head)
