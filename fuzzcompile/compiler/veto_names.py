"""Rewrites that a name after ``--veto`` means. Needs no torch: names are checked before a worker starts."""

from __future__ import annotations

import fnmatch


def matches_veto(rewrite: str, base: str, name: str) -> bool:
    """Return whether ``name`` means a rewrite, whose name without its variant is ``base``.

    ``name`` is that name itself, a leading part that ends at an underscore or at the end, a glob, or ``=`` and the name
    with or without its variant.
    """
    if name.startswith("="):
        return name[1:] in (rewrite, base)
    if rewrite == name or fnmatch.fnmatchcase(rewrite, name):
        return True
    return bool(name) and rewrite.startswith(name) and (name.endswith("_") or rewrite[len(name)] == "_")
