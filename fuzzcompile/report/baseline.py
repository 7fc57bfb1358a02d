"""Known bugs: their signatures, from earlier ``triage --json`` output or from a plain list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.settings import IgnorePatterns
from fuzzcompile.model.signatures import agree, name_same_place, renew

# What every signature begins with: a stage, then a source file, an error's type or "-".
_SIGNATURE = re.compile(r"[a-z_]+:[^:\s]+:\S.*")


@dataclass(frozen=True)
class Baseline:
    """The bugs that a user knows of: the signatures in a file, and what ``ignore`` names."""

    signatures: frozenset[str] = frozenset()
    ignored: IgnorePatterns | None = None

    @classmethod
    def of(cls, path: Path | None, ignored: IgnorePatterns | None) -> Baseline | None:
        """Return the signatures that a file lists and those that are ignored; None if there is neither.

        Raises:
            UsageError: as of :meth:`read`.
        """
        if path is None and ignored is None:
            return None
        return replace(cls() if path is None else cls.read(path), ignored=ignored)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read JSON objects or signatures, one a line; ``#`` starts a comment line.

        Raises:
            UsageError: the file cannot be read, or is neither.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(
                f"Cannot read the baseline {path}: {reason}; name a file of signatures or of `triage --json` lines."
            ) from error
        return cls(frozenset(_signatures(path, text)))

    def knows(self, report: ReportJson | None) -> bool:
        """Whether the report shows a bug that is in the list; of what either side does not know, the rest decides."""
        if report is None or not report.get("is_bug"):
            return False
        signature = report.get("signature")
        if self.ignored is not None and self.ignored.ignores_bug(signature, report.get("culprit")):
            return True
        if signature is None:
            return False
        listed = map(renew, self.signatures)
        return any(name_same_place(known, signature) and agree(known, signature) for known in listed)


def _signatures(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line[0] in "{[":
            yield from _of_object(path, number, line)
        elif _SIGNATURE.fullmatch(line):
            yield line
        else:
            raise _malformed(path, number, "no signature and no JSON object")


def _of_object(path: Path, number: int, line: str) -> Iterator[str]:
    try:
        report = json.loads(line)
    except json.JSONDecodeError as error:
        raise _malformed(path, number, "no whole JSON object") from error
    if not isinstance(report, dict) or "verdict" not in report:
        raise _malformed(path, number, "no object that `triage --json` prints")
    signature = report.get("signature")  # without one there was no bug, or no verdict
    if signature is not None and not isinstance(signature, str):
        raise _malformed(path, number, "an object whose signature is not text")
    if signature:
        yield signature


def _malformed(path: Path, number: int, what: str) -> UsageError:
    return UsageError(
        f"The baseline {path} has in line {number} {what}; give one signature or one object of `triage --json` a line."
    )
