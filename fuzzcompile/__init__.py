"""A fuzzer and triager for ``torch.compile`` on transformer code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzcompile.api.magic import load_ipython_extension as load_ipython_extension
    from fuzzcompile.api.report import Report as Report
    from fuzzcompile.api.triage import triage as triage
    from fuzzcompile.watching.wrapping import watch as watch

__version__ = "0.1.0"
__all__ = ["Report", "__version__", "triage", "watch"]

_HOMES = {
    "Report": "fuzzcompile.api.report",
    "load_ipython_extension": "fuzzcompile.api.magic",
    "triage": "fuzzcompile.api.triage",
    "watch": "fuzzcompile.watching.wrapping",
}


def __getattr__(name: str) -> object:
    """Import public names on first use: they need torch or take time to import, and most commands do without them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
