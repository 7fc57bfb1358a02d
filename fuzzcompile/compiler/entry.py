"""The older way into the compiler, ``torch._dynamo.optimize``, and what a program sets in its configs."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

_OPTIMIZE = ("optimize", "optimize_assert")
CONFIGS = {
    "inductor": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
}


@contextlib.contextmanager
def replaced_optimize(replacement: Callable[..., Any]) -> Iterator[None]:
    """Have ``torch._dynamo.optimize`` and ``optimize_assert`` call ``replacement`` inside the block."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    kept = {name: getattr(dynamo, name) for name in _OPTIMIZE if hasattr(dynamo, name)}
    try:
        for name in kept:
            setattr(dynamo, name, replacement)
        yield
    finally:
        for name, value in kept.items():
            setattr(dynamo, name, value)


def compiler_configs() -> dict[str, dict[str, Any]]:
    """Every entry of the compiler's configs, by config (``inductor``, ``dynamo``, ``functorch``)."""
    return {name: dict(importlib.import_module(module).get_config_copy()) for name, module in CONFIGS.items()}


def changed_configs(before: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries that are not what they were in ``before``, by config."""
    return {
        name: {key: value for key, value in entries.items() if not _same(value, before[name].get(key))}
        for name, entries in compiler_configs().items()
    }


def reset_compiler() -> None:
    """Forget everything that was compiled."""
    torch._dynamo.reset()


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # values of the user's with an __eq__ of their own
        return False
