"""Versions of torch: their order, and what they are called."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def order(torch: str) -> Version:
    """Sorts versions of torch; one that is no version (PEP 440) comes before all others."""
    try:
        return Version(torch)
    except InvalidVersion:
        return Version("0.dev0")


def public(torch: str) -> str:
    """The version without the name of its build: 2.13.0 for 2.13.0+cpu."""
    return torch.partition("+")[0]
