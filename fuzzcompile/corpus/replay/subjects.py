"""What is replayed: findings with their best reproducers, and which of them were asked for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from fuzzcompile.corpus.records import Finding, Reproducer, Status
from fuzzcompile.corpus.replay.reading import BUG, Expected
from fuzzcompile.corpus.store import Store
from fuzzcompile.model import hints
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.severity import Severity, rate_severity

_SYMPTOMS = {
    "miscompile": "wrong values",
    "wrong_gradient": "wrong gradients",
    "nonfinite": "NaN or infinity",
    "metadata": "wrong metadata",
    "aliasing": "wrong aliasing or mutation",
    "precision_loss": "lost precision",
    "compile_error": "does not compile",
    "runtime_error": "raises at run time",
    "accepts_invalid": "accepts what eager refuses",
    "crash": "crashes",
    "timeout": "does not end",
    "nondeterministic": "changes from run to run",
}
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Subject:
    """A finding, and the script that shows it."""

    finding: Finding
    reproducer: Reproducer | None

    @property
    def expected(self) -> Expected:
        """What the script was made to show."""
        report = self.reproducer.report if self.reproducer is not None else None
        return Expected.of(report or self.finding.report)

    @property
    def severity(self) -> Severity | None:
        """How bad the bug is that the script shows."""
        report = self.reproducer.report if self.reproducer is not None else None
        return rate_severity(report or self.finding.report)

    @property
    def what(self) -> str:
        """The bug in a few words: the operation in the user's words, or else the rewrite at fault, and the symptom."""
        shown = (self.reproducer.shown if self.reproducer is not None else None) or {}
        layout = self.severity in (Severity.LAYOUT, Severity.RAISING_LAYOUT)
        symptom = "other strides" if layout else _SYMPTOMS.get(self.expected.verdict, self.expected.verdict)
        if shown.get("expression"):
            return f"{shown['expression']}: {symptom}"
        culprit = self.finding.culprit or {}
        name = culprit.get("rewrite") or culprit.get("pass")
        return f"{name}: {symptom}" if name else symptom

    @property
    def not_replayable(self) -> str | None:
        """Why there is nothing to run; None if there is."""
        if self.reproducer is None:
            return "it has no reproducer yet"
        if BUG not in self.reproducer.source:
            return "its script is the user's own, which does not say whether the bug shows"
        return None


def subjects(store: Store, selection: Sequence[str] = ()) -> list[Subject]:
    """The selected findings, the worst first.

    Args:
        store: the corpus.
        selection: ids (F3), signatures, their beginnings or globs of them, and KEY=VALUE with the key severity,
            status, stage or umbrella. Those of one key are alternatives, and so are names; each key given must hold.

    Raises:
        UsageError: something was selected that the corpus does not have.
    """
    chosen = selected(store.findings(), selection)
    replayed = [Subject(finding, store.best_reproducer(finding.id)) for finding in chosen]
    return sorted(replayed, key=lambda subject: (_rank(subject.severity), subject.finding.id))


def selected(findings: Sequence[Finding], selection: Sequence[str]) -> list[Finding]:
    """The findings that a selection names (`subjects`)."""
    wanted: dict[str, set[int]] = {}
    for text in selection:
        key, ids = _named(findings, text)
        wanted.setdefault(key, set()).update(ids)
    return [finding for finding in findings if all(finding.id in ids for ids in wanted.values())]


def _rank(bad: Severity | None) -> int:
    return len(Severity) if bad is None else bad.rank


def _named(findings: Sequence[Finding], text: str) -> tuple[str, set[int]]:
    key, equals, value = text.partition("=")
    if equals and key in _KEYS:
        return key, set(_by_key(findings, key, value))
    matches = {finding.id for finding in findings if _is_named(finding, text)}
    if not matches:
        raise UsageError(
            f"--select {text}: the corpus has no such finding; give an id, a signature or its beginning, a glob, or "
            f"{', '.join(f'{name}=…' for name in _KEYS)} (`{hints.format_command('corpus', 'list')}` shows the "
            "findings)."
        )
    return "name", matches


def _is_named(finding: Finding, text: str) -> bool:
    if re.fullmatch(r"[fF]?\d+", text):
        return finding.public_id == f"F{text.lstrip('fF')}"
    if _GLOB.search(text):
        return fnmatch.fnmatchcase(finding.signature, text)
    return bool(text) and finding.signature.startswith(text)


def _by_key(findings: Sequence[Finding], key: str, value: str) -> Iterator[int]:
    read = _KEYS[key]
    known = _WORDS.get(key) or sorted({name for finding in findings if (name := read(finding))})
    if value not in known:
        raise UsageError(
            f"--select {key}={value}: write one of {', '.join(known) or 'nothing, as the corpus has none'}."
        )
    return (finding.id for finding in findings if read(finding) == value)


def _stage(finding: Finding) -> str | None:
    return (finding.culprit or {}).get("stage")


_KEYS: dict[str, Callable[[Finding], str | None]] = {
    "severity": lambda finding: finding.severity or rate_severity(finding.report),
    "status": lambda finding: finding.status,
    "stage": _stage,
    "umbrella": lambda finding: finding.umbrella,
}
# The keys whose words are fixed; the others' are those that the corpus has.
_WORDS: dict[str, Sequence[str]] = {"severity": list(Severity), "status": get_args(Status)}
