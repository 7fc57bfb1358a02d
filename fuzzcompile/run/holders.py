"""Objects among the arguments of a call that hold tensors: modules, key-value caches, optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.run.case import Arguments
from fuzzcompile.run.reachable import Reached, holds_state
from fuzzcompile.run.trees import is_wrapped, unwrapped


def named_arguments(call: object) -> Iterator[tuple[str, object]]:
    """The leaves of one call's inputs: by keyword, or ``argument0`` by position, with a number within a container."""
    for name, argument in _arguments(call):
        leaves = pytree.tree_leaves(argument)
        single = len(leaves) == 1 and leaves[0] is argument
        yield from ((name if single else f"{name}.{index}", leaf) for index, leaf in enumerate(leaves))


def _arguments(call: object) -> Iterator[tuple[str, object]]:
    if isinstance(call, Arguments):
        yield from ((f"argument{index}", argument) for index, argument in enumerate(call.args))
        yield from call.kwargs.items()
    elif isinstance(call, Mapping):
        yield from ((str(name), argument) for name, argument in call.items())
    else:
        listed = call if isinstance(call, tuple | list) else (call,)
        yield from ((f"argument{index}", argument) for index, argument in enumerate(listed))


def is_holder(leaf: object) -> bool:
    """Whether a leaf of a tree is an object whose attributes may hold tensors."""
    return not isinstance(leaf, torch.Tensor | type) and not is_wrapped(leaf) and holds_state(leaf)


def holders(call: object) -> dict[str, object]:
    """The objects among the inputs of one call that may hold tensors, by name, those in dataclasses included."""
    inner = (pair for name, leaf in named_arguments(call) for pair in unwrapped(name, leaf))
    return {name: leaf for name, leaf in inner if is_holder(leaf)}


def is_model(leaf: object) -> bool:
    """Whether a leaf is a module or an optimizer: part of the program, no value that it computes with."""
    return isinstance(leaf, nn.Module | torch.optim.Optimizer)


def held_tensors(name: str, leaf: object) -> dict[str, torch.Tensor]:
    """The tensors that an output holds, by name; none for a module or an optimizer."""
    if not is_holder(leaf) or is_model(leaf):
        return {}
    reached = Reached({name: leaf}, functions=False).tensors
    return {label.split(" ", 1)[1]: tensor for label, tensor in reached.items()}
