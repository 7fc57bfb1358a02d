"""Kernels of ATen that a process which compiles for a target has besides torch's own, until it ends."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable

import torch


def register(operator: str, kernel: Callable[..., object], key: str) -> None:
    """Make ``kernel`` that of an ATen operator for a dispatch key, in the place of one that torch has.

    Args:
        operator: its name in ATen with the overload (``empty.memory_format``).
        kernel: takes the operator's arguments, by position and name.
        key: the dispatch key, such as ``AutocastCPU``.
    """
    library, override = _library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        library.impl(operator, kernel, key, **override)  # type: ignore[no-untyped-call]


@functools.cache
def _library() -> tuple[torch.library.Library, dict[str, bool]]:
    """Return the library that holds the kernels, and the arguments that some versions of torch need to replace one."""
    library: torch.library.Library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    takes = inspect.signature(library.impl).parameters
    return library, {"allow_override": True} if "allow_override" in takes else {}
