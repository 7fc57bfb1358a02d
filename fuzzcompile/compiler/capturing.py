"""Source of dynamo's own handling of a function."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any


def handler_of(function: Callable[..., Any], name: str) -> Callable[..., Any] | None:
    """The code of dynamo that treats ``function`` (or the method ``name`` of tensors) in a way of its own, if any."""
    with contextlib.suppress(ImportError, AttributeError):
        variable = importlib.import_module("torch._dynamo.variables.tensor").TensorVariable
        method = getattr(variable, f"method_{name}", None)
        if method is not None:
            return method  # type: ignore[no-any-return]
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        variable = importlib.import_module("torch._dynamo.variables.torch").TorchInGraphFunctionVariable
        handler = variable._get_handlers().get(function)
        if handler is not None:
            return handler  # type: ignore[no-any-return]
    return None
