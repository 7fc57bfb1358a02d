"""The setting ``ignore``: bugs that a project knows of, and files that are no cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class Ignored:
    """Patterns of ``ignore``.

    A pattern with a colon speaks of signatures: one matches that is equal to it, begins with it, or fits it as a glob
    (``joint_graph:*:sfdp*``). Any other pattern is a glob that is tried on three things: the file of a case, relative
    to ``base``, and the folders above it (``experiments``, ``*_slow.py``); the rewrite or the pass of a culprit
    (``_sfdp_pattern_*``); and the source file of a culprit (``torch/_inductor/fx_passes/*``).

    Attributes:
        patterns: what the user gave.
        base: the folder that files are relative to.
    """

    patterns: tuple[str, ...]
    base: Path

    def file(self, path: Path) -> bool:
        """Return whether triage of a folder or a glob passes over this file."""
        names = _names(path.absolute(), self.base.absolute())
        return any(fnmatchcase(name, pattern.rstrip("/")) for pattern in self._globs() for name in names)

    def bug(self, signature: str | None, culprit: Mapping[str, object] | None) -> bool:
        """Return whether a bug of this signature and culprit counts as known."""
        named = [str((culprit or {}).get(field) or "") for field in ("rewrite", "pass", "source")]
        if any(fnmatchcase(name, pattern) for pattern in self._globs() for name in named if name):
            return True
        return signature is not None and any(
            signature == pattern or signature.startswith(pattern.rstrip(":") + ":") or fnmatchcase(signature, pattern)
            for pattern in self.patterns
            if ":" in pattern
        )

    def _globs(self) -> list[str]:
        return [pattern for pattern in self.patterns if ":" not in pattern]


def _names(path: Path, base: Path) -> list[str]:
    """A file's own name, and its path and those of the folders above it, from ``base``."""
    if not path.is_relative_to(base):
        return [path.name]
    inside = path.relative_to(base)
    return [path.name, *(str(place) for place in (inside, *inside.parents) if place != Path())]
