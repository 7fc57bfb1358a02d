"""Operators that run functions (``torch.cond``, loops): a dispatch mode has to see what these functions do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
# What a dispatch mode is called with: an operator of ATen, of torchvision, of the user's.
Operator: TypeAlias = "torch._ops.OpOverload[..., Any]"


def runs_functions(operator: object) -> bool:
    """Whether ``operator`` is a higher-order one: it has no schema, and its arguments may be functions."""
    return isinstance(operator, torch._ops.HigherOrderOperator)


def run_inside(
    mode: TorchDispatchMode, operator: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]
) -> T:
    """Run a higher-order operator from within ``mode``'s own handler, so that its functions run under ``mode``."""

    def under(function: Callable[..., object]) -> Callable[..., object]:
        def run(*inner: object, **named: object) -> object:
            with mode:
                return function(*inner, **named)

        # In eager mode dynamo handles these operators, and would trace into ``run``.
        untraced: Callable[..., object] = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
        return untraced

    args, kwargs = pytree.tree_map(
        lambda value: under(value) if callable(value) and not isinstance(value, torch.Tensor) else value,
        (tuple(args), dict(kwargs)),
    )
    return operator(*args, **kwargs)
