"""A fuzzer and triager for ``torch.compile`` on transformer code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzcompile.watching.wrapping import watch as watch

__version__ = "0.1.0"
__all__ = ["__version__", "watch"]


def __getattr__(name: str) -> object:
    """``watch`` is loaded when it is asked for: it needs torch, and most commands start without."""
    if name != "watch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("fuzzcompile.watching.wrapping").watch
