"""Operators that run functions (``torch.cond``, loops): a dispatch mode has to see what these functions do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def runs_functions(operator: Any) -> bool:
    """Whether ``operator`` is a higher-order one: it has no schema, and its arguments may be functions."""
    return isinstance(operator, torch._ops.HigherOrderOperator)


def run_inside(mode: TorchDispatchMode, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a higher-order operator from within ``mode``'s own handler, so that its functions run under ``mode``."""

    def under(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inner: Any, **named: Any) -> Any:
            with mode:
                return function(*inner, **named)

        # In eager mode dynamo is at work around these operators, and would look into this.
        quiet: Callable[..., Any] = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
        return quiet

    args, kwargs = pytree.tree_map(
        lambda value: under(value) if callable(value) and not isinstance(value, torch.Tensor) else value,
        (tuple(args), dict(kwargs)),
    )
    return operator(*args, **kwargs)
