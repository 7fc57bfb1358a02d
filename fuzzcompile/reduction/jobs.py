"""What a minimisation is given, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fuzzcompile.generation import GeneratedCase, Profile
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.search import Prober, Tally


class Tools(Prober, Protocol):
    """What happens where torch runs: in this process, or in a worker that may be lost."""

    def programs(self, source: str) -> Sequence[Program]:
        """Dynamo's graphs of a case, the likeliest to hold the bug first; empty if none can be written down."""

    def judge(self, source: str) -> Mapping[str, Any]:
        """The full report on a source, in its JSON form."""

    def become_thorough(self) -> None:
        """From now on, probe as triage judges."""


@dataclass(frozen=True)
class Job:
    """What is to be made small: a source with its report, and the recipe of a generated case.

    ``is_case`` tells a case file from a script; ``screens`` whether the bug may show where graphs are interpreted.
    """

    source: str
    report: Mapping[str, Any]
    choices: bytes | None = None
    profile: Profile = field(default_factory=Profile)
    is_case: bool = True
    screens: bool = False


@dataclass(frozen=True)
class Outcome:
    """A small case, its own report, and the reproducer built from it.

    ``how`` is "recipe", "graph", "text" or "as found"; ``changed`` is false where nothing smaller was found. ``note``
    says in a sentence what a reader should know. ``operators_before`` and ``operators`` count calls of torch functions
    in the captured graphs (None: not captured). ``others`` are generated cases that failed in other ways; ``tally`` has
    the sources of all that did.
    """

    source: str
    report: Mapping[str, Any]
    reproducer: str
    confirmed: bool
    confirmation: str
    neighbour: str | None
    how: str
    changed: bool
    note: str
    tally: Tally
    seconds: float
    finished: bool
    operators_before: int | None
    operators: int | None
    case: GeneratedCase | None = None
    others: tuple[GeneratedCase, ...] = ()


def same_bug(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a report is one of the same bug: the signature, or where a culprit is but guessed, verdict and stage."""
    if not found.get("is_bug"):
        return False
    if wanted.get("signature") == found.get("signature"):
        return True
    if Verdict(wanted["verdict"]).kind != Verdict(found["verdict"]).kind:
        return False
    guessed = "low" in (wanted.get("confidence"), found.get("confidence"))
    stages = [(report.get("culprit") or {}).get("stage") for report in (wanted, found)]
    return guessed and (stages[0] == stages[1] or None in stages)
