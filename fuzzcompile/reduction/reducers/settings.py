"""Reduce settings toward the defaults: no options, no backward pass, static shapes, no gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuzzcompile.reduction.search import Search, settings_without


def plain_settings(search: Search) -> None:
    """Leave out all settings together, then one by one, then single entries of the rest."""
    if not search.best.settings:
        return
    if search.attempt(replace(search.best, settings={})):
        return
    for name in list(search.best.settings):
        search.attempt(replace(search.best, settings=settings_without(search.best, name)))
    for name, entries in list(search.best.settings.items()):
        if isinstance(entries, Mapping) and len(entries) > 1:
            _drop_entries(search, name, entries)


def _drop_entries(search: Search, name: str, entries: Mapping[str, object]) -> None:
    """Leave out entries of one setting, one at a time."""
    for key in entries:
        fewer = {kept: value for kept, value in entries.items() if kept != key}
        if search.attempt(replace(search.best, settings={**search.best.settings, name: fewer})):
            entries = fewer
