"""Options of the compiler that the installed torch has, down to the passes that its fusion options name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping

from fuzzcompile.compiler.settings import MISSING, setting

_PASSES = "torch._inductor.fx_passes"
# Per option, where the passes are that it may name.
_TABLES = {
    "pre_grad_fusion_options": (("split_cat", "PRE_GRAD_PATTERNS"), ("group_batch_fusion", "PRE_GRAD_FUSIONS")),
    "post_grad_fusion_options": (("split_cat", "POST_GRAD_PATTERNS"), ("group_batch_fusion", "POST_GRAD_FUSIONS")),
}


def unknown_options(options: Mapping[str, object]) -> tuple[str, ...]:
    """The entries of ``torch._inductor.config``, and the passes named in them, that the installed torch lacks."""
    unknown = [key for key in options if setting(key) is MISSING]
    for key, tables in _TABLES.items():
        known = {name for module, table in tables for name in _table(module, table)}
        unknown += [f"{key}:{name}" for name in _names(options.get(key)) if name not in known]
    return tuple(unknown)


def _names(option: object) -> Iterable[str]:
    return option if isinstance(option, Mapping) else ()


def _table(module: str, name: str) -> Mapping[str, object]:
    try:
        table: Mapping[str, object] = getattr(importlib.import_module(f"{_PASSES}.{module}"), name)
    except (ImportError, AttributeError):
        return {}
    return table
