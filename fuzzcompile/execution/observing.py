"""What a call of a program leaves to be seen: outputs, mutated inputs and buffers, gradients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.execution.building import Program
from fuzzcompile.execution.observation import Value
from fuzzcompile.execution.tensors import dense, overlapping, significant_strides, tensor_leaves

_COTANGENT_SEED = 7


def structure(output: Any) -> str:
    """How an output is nested, and of which classes its dataclasses are."""
    leaves, structure = pytree.tree_flatten(output)
    classes = [type(leaf).__qualname__ for leaf in leaves if _is_dataclass(leaf)]
    return f"{structure} with {', '.join(classes)}" if classes else str(structure)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | torch.Tensor)


def _named_leaves(name: str, output: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of an output by name: ``out0``, and ``out0.logits`` for a field of a dataclass."""
    for index, leaf in enumerate(pytree.tree_leaves(output)):
        yield from _unwrapped(f"{name}{index}", leaf)


def _unwrapped(name: str, leaf: Any) -> Iterator[tuple[str, Any]]:
    if not _is_dataclass(leaf):
        yield name, leaf
        return
    for entry in dataclasses.fields(leaf):
        value = getattr(leaf, entry.name, None)
        leaves = pytree.tree_leaves(value)
        single = len(leaves) == 1 and leaves[0] is value
        for index, inner in enumerate(leaves):
            yield from _unwrapped(f"{name}.{entry.name}" + ("" if single else str(index)), inner)


def _leaves(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    """Tensors that exist before the call, by the name under which a user knows them."""
    named = {f"input{i}": tensor for i, tensor in enumerate(tensor_leaves(arguments))}
    return {**named, **program.tensors()}


def bits(program: Program, arguments: Any) -> dict[str, torch.Tensor]:
    """Copies of every tensor that exists before a call, by name."""
    return {name: _kept(tensor) for name, tensor in _leaves(program, arguments).items()}


def outputs(prefix: str, output: Any, program: Program, arguments: Any) -> list[Value]:
    """The leaves of what a call returned; ``prefix`` tells several calls apart."""
    existing = _leaves(program, arguments)
    values: list[Value] = []
    seen: dict[str, torch.Tensor] = {}
    leaves = list(_named_leaves(f"{prefix}out", output))
    precision = torch.float64 if program.double else program.dtype
    for name, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            values.append(_plain_value(name, leaf, precision))
            continue
        aliases = tuple(other for other, tensor in {**existing, **seen}.items() if overlapping(leaf, tensor))
        form = "" if leaf.layout == torch.strided else str(leaf.layout)
        values.append(Value(name, _kept(leaf), "output", significant_strides(leaf), aliases, form))
        seen[name] = leaf
    return values


def _plain_value(name: str, leaf: Any, precision: torch.dtype) -> Value:
    """An output that is no tensor: NumPy's arrays and scalars are compared as tensors."""
    if isinstance(leaf, numpy.ndarray | numpy.generic):
        with contextlib.suppress(TypeError):  # dtypes that torch does not have
            tensor = torch.from_numpy(numpy.array(leaf, order="K"))
            return Value(name, tensor, "output", significant_strides(tensor), form=type(leaf).__name__)
    return Value(name, leaf, "output", precision=precision if isinstance(leaf, float | complex) else None)


def mutations(prefix: str, before: Mapping[str, torch.Tensor], program: Program, arguments: Any) -> list[Value]:
    """The tensors that were there before the call and hold other bits after it."""
    changed = []
    for name, tensor in _leaves(program, arguments).items():
        old = before.get(name)
        now = _kept(tensor)
        if old is None or old.shape != now.shape or not _same_bits(old, now):
            changed.append(Value(f"{prefix}{name} after the call", now, "mutation"))
    return changed


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype != second.dtype:
        return False
    equal = first == second
    if first.is_floating_point() or first.is_complex():
        equal = equal | ((first != first) & (second != second))
    return bool(equal.all())


def backward(output: Any, *, required: bool = True) -> None:
    """Loss = Σ out · c over the floating outputs, c a fixed standard normal tensor per output.

    A plain sum proves nothing behind a softmax, whose outputs sum to a constant. The numbers are such that every
    floating dtype has them, so that the native run and the reference differentiate the same loss.
    """
    generator = torch.Generator().manual_seed(_COTANGENT_SEED)
    losses = []
    for _, leaf in _named_leaves("out", output):
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        with _disable_current_modes():  # our own casts are none of the program
            drawn = torch.randn(leaf.shape, generator=generator).to(torch.bfloat16).to(torch.float16)
            cotangent = drawn.to(leaf.device, leaf.dtype)
        if leaf.requires_grad:
            product = leaf * cotangent
            losses.append((product.real if product.is_complex() else product).sum())
    if not losses:
        if required:
            raise RuntimeError("BACKWARD is set, but no output requires a gradient")
        return
    torch.autograd.backward(losses)


def gradients(prefix: str, program: Program, arguments: Any) -> list[Value]:
    """The gradients of parameters and of inputs that ask for one (a value of None: there is none)."""
    gradients = []
    for name, tensor in _leaves(program, arguments).items():
        if tensor.requires_grad and tensor.is_leaf:
            value = None if tensor.grad is None else _kept(tensor.grad)
            gradients.append(Value(f"{prefix}gradient of {name}", value, "gradient"))
    return gradients


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy that later in-place writes cannot reach."""
    tensor = tensor.detach()
    result = dense(tensor)
    return tensor.clone() if result is tensor else result
