"""A function that a rule searches for, as the calls that it makes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.programs.filling import Filled
from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made, Skeleton
from fuzzcompile.generation.patterned import Operand

_SPECIAL = {
    f"__{name}__": getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "matmul", "pow", "mod", "eq", "ne", "lt", "le", "gt", "ge")
} | {"__getitem__": operator.getitem, "__and__": operator.and_, "__or__": operator.or_}
_REFLECTED = {f"__r{name.strip('_')}__": function for name, function in _SPECIAL.items()}


def recorded(
    function: Callable[..., object],
    inputs: Sequence[torch.Tensor | float],
    scalars: Mapping[str, object],
    *,
    training: bool,
) -> Filled:
    """The calls of torch that a function makes with these tensors, whose values become operands.

    Raises:
        Exception: whatever the function raises.
    """
    holes = {id(value): Hole(f"x{at}", "Tensor") for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    mode = _Recording(dict(holes))
    with torch.no_grad(), mode:
        result = function(*inputs, **scalars)
    skeleton = mode.skeleton
    made = [mode.known.get(id(leaf)) for leaf in pytree.tree_leaves(result)]
    skeleton.returns = list(dict.fromkeys(leaf.index for leaf in made if isinstance(leaf, Made)))
    skeleton.backward = training
    values: dict[Hole, object] = {
        holes[id(value)]: Operand(
            "",
            tuple(value.shape),
            str(value.dtype).removeprefix("torch."),
            strides=None if value.is_contiguous() else value.stride(),
            trainable=value.requires_grad,
        )
        for value in inputs
        if isinstance(value, torch.Tensor)
    }
    return Filled(skeleton.finish(), values)


class _Recording(TorchFunctionMode):
    """Notes each call whose result is a tensor, or holds one."""

    def __init__(self, known: dict[int, Hole | Made]) -> None:
        super().__init__()
        self.known, self.skeleton = known, Skeleton()
        self._alive: list[object] = []  # an id means nothing once its object is gone

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        self._alive.append(result)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not tensors or (isinstance(result, torch.Tensor) and id(result) in self.known):
            return result
        target, given = _target(func, args)
        arguments, named = pytree.tree_map(
            lambda leaf: self.known.get(id(leaf), leaf), (tuple(given), dict(kwargs or {}))
        )
        made = self.skeleton.add(Call(target, arguments, named))
        if isinstance(result, torch.Tensor):
            self.known[id(result)] = made
        else:
            for index, tensor in enumerate(tensors):
                self.known[id(tensor)] = self.skeleton.add(Call(operator.getitem, (made, index)))
        return result


def _target(function: Any, args: Sequence[Any]) -> tuple[object, Sequence[Any]]:
    """A function as it is called in a program: an operator, a method by its name, or itself."""
    name = getattr(function, "__name__", "")
    if name == "__get__":  # a property such as ``T``
        return getattr, (args[0], function.__self__.__name__)
    if name in _SPECIAL:
        return _SPECIAL[name], args
    if name in _REFLECTED:
        return _REFLECTED[name], (args[1], args[0])
    if type(function).__name__ in ("method_descriptor", "wrapper_descriptor") or "Tensor." in getattr(
        function, "__qualname__", ""
    ):
        return name, args
    return function, args
