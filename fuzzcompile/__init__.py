"""A fuzzer and triager for ``torch.compile`` on transformer code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fuzzcompile.model.versions import __version__

if TYPE_CHECKING:
    from fuzzcompile.analyses.watch.watcher import watch as watch
    from fuzzcompile.front.api.notebook import load_ipython_extension as load_ipython_extension
    from fuzzcompile.front.api.report import Report as Report
    from fuzzcompile.front.api.triage import triage as triage

__all__ = ["Report", "__version__", "triage", "watch"]


_HOMES = {
    "Report": "fuzzcompile.front.api.report",
    "load_ipython_extension": "fuzzcompile.front.api.notebook",
    "triage": "fuzzcompile.front.api.triage",
    "watch": "fuzzcompile.analyses.watch.watcher",
}


def __getattr__(name: str) -> object:
    """Import public names on first use: they need torch or take time to import, and most commands do without them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
