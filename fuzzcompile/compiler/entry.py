"""The older way into the compiler, ``torch._dynamo.optimize``, and what a program sets in its configs."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fuzzcompile.compiler.configs import CONFIGS, config_of

_OPTIMIZE = ("optimize", "optimize_assert")


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


def compiler_configs() -> dict[str, dict[str, object]]:
    """Every entry of the compiler's configs, by config (``inductor``, ``dynamo``, ``functorch``)."""
    return {name: config_of(name).get_config_copy() for name in CONFIGS}


def changed_configs(before: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The entries that are not what they were in ``before``, by config."""
    return {
        name: {key: value for key, value in entries.items() if not _same(value, before[name].get(key))}
        for name, entries in compiler_configs().items()
    }


def reset_compiler() -> None:
    """Forget everything that was compiled."""
    torch._dynamo.reset()


def _same(before: object, after: object) -> bool:
    if before is after:
        return True
    try:
        return bool(before == after)
    except Exception:  # values of the user's with an __eq__ of their own
        return False
