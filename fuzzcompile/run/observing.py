"""The observables of a call: outputs, mutated inputs and buffers, gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.run.building import Program
from fuzzcompile.run.case import Reachable
from fuzzcompile.run.holders import held_tensors, holders, named_arguments
from fuzzcompile.run.memory import aliases
from fuzzcompile.run.observation import Value
from fuzzcompile.run.tensors import dense, significant_strides
from fuzzcompile.run.trees import is_wrapped, named_leaves, unwrapped

# Seeds the cotangents of the backward pass, in our runs and in the reproducers that we write.
COTANGENT_SEED = 7
_ABSENT = object()
# One form for NumPy's arrays and scalars: compiling turns scalars into arrays without dimensions, as documented.
_NUMPY = "NumPy array"


@dataclass(frozen=True)
class Before:
    """The tensors that exist before a call: copies of them, and which of them share memory, by name.

    ``attributes`` are those of objects that are whole numbers, flags, strings or None (a cache's length).
    """

    bits: Mapping[str, torch.Tensor]
    aliases: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, object]


def _existing(program: Program, arguments: object, reached: Reachable | None = None) -> dict[str, torch.Tensor]:
    """Tensors that exist before the call, by the name that a user knows them by.

    Inputs are numbered in pytree's order; inputs in a dataclass (or another container that pytree does not know) are
    named after that argument and the field.
    """
    named: dict[str, torch.Tensor] = {}
    count = 0
    for name, leaf in named_arguments(arguments):
        if isinstance(leaf, torch.Tensor):
            named[f"input{count}"] = leaf
            count += 1
        elif is_wrapped(leaf) and program.state is None:  # else it is part of the state
            inner = unwrapped(name, leaf)
            named.update((name, value) for name, value in inner if isinstance(value, torch.Tensor))
    return {**named, **(reached or program.reached()).tensors}


def bits(program: Program, arguments: object) -> Before:
    """The state before a call, which :func:`mutations` compares with the state after it."""
    reached = program.reached()
    existing = _existing(program, arguments, reached)
    kept = {name: _kept(tensor) for name, tensor in existing.items()}
    return Before(kept, aliases(existing), reached.plain_attributes())


def outputs(
    prefix: str, output: object, program: Program, arguments: object, earlier: dict[str, object] | None = None
) -> list[Value]:
    """The leaves of what a call returned, and the tensors that objects among them hold (a new key-value cache).

    An object that is an argument of the call has that argument among its aliases.

    Args:
        prefix: distinguishes the names of several calls.
        output: what the call returned.
        program: the program that was called.
        arguments: the inputs of the call.
        earlier: the outputs of earlier calls, to which those of this call are added: two calls may return the same
            memory.
    """
    returned = list(named_leaves(f"{prefix}out", output))
    given = {id(leaf): (name,) for name, leaf in holders(arguments).items()}
    # What an argument holds is compared as such.
    held = [pair for name, leaf in returned if id(leaf) not in given for pair in held_tensors(name, leaf).items()]
    leaves: list[tuple[str, object]] = [*returned, *held]
    earlier = {} if earlier is None else earlier
    shared = aliases({**_existing(program, arguments), **earlier, **dict(leaves)})
    earlier.update((name, leaf) for name, leaf in leaves if isinstance(leaf, torch.Tensor | numpy.ndarray))
    precision = torch.float64 if program.double else program.dtype
    values = [_output(name, leaf, given.get(id(leaf), shared.get(name, ())), precision) for name, leaf in leaves]
    # The layout of what an object keeps for itself is no more observable than that of an attribute.
    return [*values[: len(returned)], *(replace(value, stride=()) for value in values[len(returned) :])]


def _output(name: str, leaf: object, aliases: tuple[str, ...], precision: torch.dtype) -> Value:
    if not isinstance(leaf, torch.Tensor):
        return replace(_plain_value(name, leaf, precision), aliases=aliases)
    form = "" if leaf.layout == torch.strided else str(leaf.layout)
    return Value(name, _kept(leaf), "output", significant_strides(leaf), aliases, form)


def _plain_value(name: str, leaf: object, precision: torch.dtype) -> Value:
    """An output that is not a tensor: NumPy's arrays and scalars are compared as tensors."""
    if isinstance(leaf, numpy.ndarray | numpy.generic):
        with contextlib.suppress(TypeError):  # dtypes that torch does not have
            tensor = torch.from_numpy(numpy.array(leaf, order="K"))
            return Value(name, tensor, "output", significant_strides(tensor), form=_NUMPY)
    return Value(name, leaf, "output", precision=precision if isinstance(leaf, float | complex) else None)


def mutations(prefix: str, before: Before, program: Program, arguments: object) -> list[Value]:
    """What is not after the call what it was before: bits of tensors, memory that they share, plain attributes."""
    changed = []
    reached = program.reached()
    existing = _existing(program, arguments, reached)
    now_shared = aliases(existing)
    for name, tensor in existing.items():
        old = before.bits.get(name)
        now = _kept(tensor)
        shared = now_shared.get(name, ())
        same = old is not None and old.shape == now.shape and _same_bits(old, now)
        if not same or shared != before.aliases.get(name, ()):
            changed.append(Value(f"{prefix}{name} after the call", now, "mutation", aliases=shared))
    for name, attribute in reached.plain_attributes().items():
        if attribute != before.attributes.get(name, _ABSENT):
            changed.append(Value(f"{prefix}attribute {name} after the call", attribute, "mutation"))
    return changed


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype != second.dtype:
        return False
    comparable = first.dtype is not torch.complex32 and {first.layout, second.layout} == {torch.strided}
    if comparable and torch.equal(first, second):
        return True
    equal = first == second
    if first.is_floating_point() or first.is_complex():
        equal = equal | ((first != first) & (second != second))
    return bool(equal.all())


def backward(output: object, *, required: bool = True) -> None:
    """Run the backward of the loss Σ out · c over the floating outputs, c a fixed standard normal tensor per output.

    A plain sum proves nothing behind a softmax, whose outputs sum to a constant. Every floating dtype can represent
    the values of c, so that the native run and the reference differentiate the same loss.

    Args:
        output: what the call returned.
        required: raise if no output requires a gradient.

    Raises:
        RuntimeError: no output requires a gradient, though one must.
    """
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    losses = []
    for _, leaf in named_leaves("out", output):
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        with _disable_current_modes():  # these casts are ours, not the program's
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


def gradients(prefix: str, program: Program, arguments: object) -> list[Value]:
    """The gradients of parameters and inputs that require one; a value of None for a gradient that is missing."""
    gradients = []
    for name, tensor in _existing(program, arguments).items():
        if tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad):
            value = None if tensor.grad is None else _kept(tensor.grad)
            gradients.append(Value(f"{prefix}gradient of {name}", value, "gradient"))
    return gradients


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy that later in-place writes do not change."""
    tensor = tensor.detach()
    result = dense(tensor)
    return tensor.clone() if result is tensor else result
