"""How the program is compiled, toward the defaults: no options, no backward pass, static shapes, no gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fuzzcompile.reduction.search import Search, settings_without


def plain_settings(search: Search) -> None:
    """All settings at once, then each, then the entries of what stays."""
    if not search.best.settings:
        return
    if search.attempt(replace(search.best, settings={})):
        return
    for name in list(search.best.settings):
        search.attempt(replace(search.best, settings=settings_without(search.best, name)))
    for name, value in list(search.best.settings.items()):
        if isinstance(value, Mapping) and len(value) > 1:
            for key in list(value):
                _drop_entry(search, name, key)


def _drop_entry(search: Search, name: str, key: Any) -> None:
    value: Mapping[str, Any] = search.best.settings[name]
    fewer = {other: kept for other, kept in value.items() if other != key}
    search.attempt(replace(search.best, settings={**search.best.settings, name: fewer}))
