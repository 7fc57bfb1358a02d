"""Reduce settings toward the defaults: no options, no backward pass, static shapes, no gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuzzcompile.reduction.search import Search


def plain_settings(search: Search) -> None:
    """Leave out all settings together, then one by one, then single entries of the rest."""
    if not search.best.settings:
        return
    if search.attempt(replace(search.best, settings={})):
        return
    for name in list(search.best.settings):
        search.attempt(replace(search.best, settings=_without(search.best.settings, name)))
    for name, entries in list(search.best.settings.items()):
        if isinstance(entries, Mapping) and len(entries) > 1:
            _drop_entries(search, name, entries)


def _drop_entries(search: Search, name: str, entries: Mapping[str, object]) -> None:
    """Leave out entries of one setting, one at a time."""
    for key in entries:
        fewer = _without(entries, key)
        if search.attempt(replace(search.best, settings={**search.best.settings, name: fewer})):
            entries = fewer


def _without(entries: Mapping[str, object], key: str) -> dict[str, object]:
    return {kept: value for kept, value in entries.items() if kept != key}
