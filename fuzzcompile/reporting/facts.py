"""What an issue draft may say: the facts of one finding, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzcompile.oracle.verdicts import Verdict

# Findings of the judge under which an output is as it should be.
_HARMLESS = ("same", "close", "wild")


@dataclass(frozen=True)
class IssueFacts:
    """One finding, ready to be told.

    ``report`` is the triage object; ``confirmed`` says that the reproducer was run alone in a clean process
    and ended with status 1, ``output`` is what it printed there.
    """

    report: Mapping[str, Any]
    reproducer: str | None
    environment: Mapping[str, Any]
    first_seen: str | None = None
    hits: int = 0
    confirmed: bool = False
    output: str | None = None

    @property
    def is_script(self) -> bool:
        """Whether the reproducer is a user's script, which has neither our check nor our exit status."""
        return self.reproducer is not None and not re.search(r"^def make\(", self.reproducer, re.MULTILINE)

    @property
    def verdict(self) -> str:
        """The verdict's name."""
        return str(self.report.get("verdict") or "unknown")

    @property
    def is_bug(self) -> bool:
        """Whether there is something to file."""
        said = self.report.get("is_bug")
        return bool(said) if said is not None else self.verdict in {str(v) for v in Verdict if v.is_bug}

    @property
    def device(self) -> str | None:
        """The device it was seen on."""
        return self._either("device")

    @property
    def torch(self) -> str | None:
        """The torch it was seen in."""
        return self._either("torch")

    @property
    def culprit(self) -> Mapping[str, Any] | None:
        """What is at fault, if that is known."""
        return self.report.get("culprit") or None

    @property
    def proved(self) -> bool:
        """Whether the culprit was switched off alone and the bug went with it."""
        return bool(self.culprit and self.culprit.get("rewrite") and self.culprit.get("necessary"))

    @property
    def low_confidence(self) -> bool:
        """Whether the triage itself is not sure."""
        return self.report.get("confidence") != "high"

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        """Evidence by output."""
        return (self.report.get("evidence") or {}).get("outputs") or ()

    @property
    def wrong(self) -> list[Mapping[str, Any]]:
        """Outputs that are not as they should be: gradients last, the worst of each first."""
        wrong = [entry for entry in self.outputs if entry.get("finding") not in (*_HARMLESS, None)]
        return sorted(wrong, key=lambda entry: (_is_gradient(entry), -_badness(entry)))

    @property
    def shares_wrongly(self) -> bool:
        """Whether nothing is wrong but what an output shares memory with."""
        return bool(self.wrong) and all(entry.get("finding") == "alias" for entry in self.wrong)

    @property
    def measured(self) -> Mapping[str, Any] | None:
        """The output whose errors say most; None where none was measured."""
        candidates = self.wrong or sorted(self.outputs, key=_badness, reverse=True)
        return next((entry for entry in candidates if _is_measured(entry)), None)

    @property
    def detail(self) -> str:
        """What the triage says in words: an error's message, most often."""
        return str(self.report.get("detail") or "")

    def _either(self, key: str) -> str | None:
        value = self.report.get(key) or self.environment.get(key)
        return str(value) if value else None


def facts_from(
    report: Mapping[str, Any],
    reproducer: str | None,
    environment: Mapping[str, Any],
    first_seen: str | None,
    hits: int,
    *,
    confirmed: bool = False,
    output: str | None = None,
) -> IssueFacts:
    """Gather the facts of a finding; ``first_seen`` is None for a case that no campaign found."""
    return IssueFacts(report, reproducer, environment, first_seen, hits, confirmed, output)


def _badness(entry: Mapping[str, Any]) -> float:
    error = entry.get("max_abs_error_compiled")
    if error is None:
        return float("inf") if entry.get("non_finite") else 0.0
    return float(error) / (float(entry.get("scale") or 0.0) or 1.0)


def _is_gradient(entry: Mapping[str, Any]) -> bool:
    return "gradient of " in str(entry.get("name"))


def _is_measured(entry: Mapping[str, Any]) -> bool:
    return entry.get("finding") not in ("dtype", "shape", "stride", "alias", "missing", "integer") and (
        entry.get("max_abs_error_compiled") is not None or bool(entry.get("non_finite"))
    )
