"""Gives freed memory back to the system, which allocators put off: a worker is measured by what it holds there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import psutil

# Memory of the process from which on giving some of it back is worth the milliseconds, in bytes.
_LEAST_BYTES = 2**30


def _glibc() -> Callable[[int], int] | None:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # a system whose programs cannot be opened as a library
        return None


_malloc_trim = _glibc()


def give_back() -> None:
    """Give freed memory back, in a large process; only glibc can be asked to."""
    if _malloc_trim is not None and psutil.Process().memory_info().rss >= _LEAST_BYTES:
        _malloc_trim(0)
