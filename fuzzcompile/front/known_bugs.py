"""Bugs that a project knows of, and files that are no cases: a baseline, and the setting ``ignore``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import read_settings
from fuzzcompile.model.signatures import agree, name_same_place, renew

# What every signature begins with: a stage, then a source file, an error's type or "-".
_SIGNATURE = re.compile(r"[a-z_]+:[^:\s]+:\S.*")


@dataclass(frozen=True)
class IgnorePatterns:
    """Patterns of ``ignore``, whose files are relative to ``base``.

    A pattern with a colon speaks of signatures: one matches that is equal to it, begins with it, or fits it as a glob
    (``joint_graph:*:sfdp*``). Any other pattern is a glob that is tried on three things: the file of a case, relative
    to ``base``, and the folders above it (``experiments``, ``*_slow.py``); the rewrite or the pass of a culprit
    (``_sfdp_pattern_*``); and the source file of a culprit (``torch/_inductor/fx_passes/*``).
    """

    patterns: tuple[str, ...]
    base: Path

    @classmethod
    def of(cls, patterns: tuple[str, ...]) -> IgnorePatterns | None:
        """The matcher of patterns; those of pyproject.toml are relative to that file, others to the working folder."""
        settings = read_settings()
        ours = settings.path is not None and patterns == settings.project.get("ignore")
        base = settings.path.parent if ours and settings.path is not None else Path.cwd()
        return cls(patterns, base) if patterns else None

    def ignores_file(self, path: Path) -> bool:
        """Return whether triage of a folder or a glob passes over this file."""
        path, base = path.absolute(), self.base.absolute()
        names = [path.name]
        if path.is_relative_to(base):
            inside = path.relative_to(base)
            names += [str(place) for place in (inside, *inside.parents) if place != Path()]
        return any(fnmatchcase(name, pattern.rstrip("/")) for pattern in self._globs for name in names)

    def ignores_bug(self, signature: str | None, culprit: Mapping[str, object] | None) -> bool:
        """Return whether a bug of this signature and culprit counts as known."""
        named = [str((culprit or {}).get(field) or "") for field in ("rewrite", "pass", "source")]
        if any(fnmatchcase(name, pattern) for pattern in self._globs for name in named if name):
            return True
        return signature is not None and any(
            signature == pattern or signature.startswith(pattern.rstrip(":") + ":") or fnmatchcase(signature, pattern)
            for pattern in self.patterns
            if ":" in pattern
        )

    @property
    def _globs(self) -> list[str]:
        return [pattern for pattern in self.patterns if ":" not in pattern]


@dataclass(frozen=True)
class Baseline:
    """The bugs that a user knows of: the signatures in a file, and what ``ignore`` names."""

    signatures: frozenset[str] = frozenset()
    ignored: IgnorePatterns | None = None

    @classmethod
    def of(cls, path: Path | None, ignored: IgnorePatterns | None) -> Baseline | None:
        """Return the signatures that a file lists and those that are ignored; None if there is neither."""
        if path is None and ignored is None:
            return None
        return replace(cls() if path is None else cls.read(path), ignored=ignored)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read JSON objects or signatures, one a line; ``#`` starts a comment line."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(
                f"Cannot read the baseline {path}: {reason}; name a file of signatures or of `triage --json` lines."
            ) from error
        signatures = set[str | None]()
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            try:
                signatures.add(_read_signature(line))
            except ValueError as error:
                raise UsageError(
                    f"The baseline {path} has in line {number} {error}; give one signature or one object of "
                    "`triage --json` a line."
                ) from error
        return cls(frozenset(filter(None, signatures)))

    def knows(self, report: ReportJson | None) -> bool:
        """Whether the report shows a bug that is in the list; of what either side does not know, the rest decides."""
        if report is None or not report.get("is_bug"):
            return False
        signature = report.get("signature")
        if self.ignored is not None and self.ignored.ignores_bug(signature, report.get("culprit")):
            return True
        return signature is not None and any(
            name_same_place(known, signature) and agree(known, signature) for known in map(renew, self.signatures)
        )


def _read_signature(line: str) -> str | None:
    """Return the signature in a line; None in a comment, and in a report without a bug or a verdict."""
    if not line or line.startswith("#"):
        return None
    if line[0] not in "{[":
        if _SIGNATURE.fullmatch(line):
            return line
        raise ValueError("no signature and no JSON object")
    try:
        report = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError("no whole JSON object") from error
    if not isinstance(report, dict) or "verdict" not in report:
        raise ValueError("no object that `triage --json` prints")
    signature = report.get("signature")
    if signature is None or isinstance(signature, str):
        return signature
    raise ValueError("an object whose signature is not text")
