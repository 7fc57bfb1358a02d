"""What a minimisation is given, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fuzzcompile.generation import GeneratedCase, Profile
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reduction.program import Program
from fuzzcompile.reduction.reports import read
from fuzzcompile.reduction.scripts.sources import case_part
from fuzzcompile.reduction.search import Prober, Tally
from fuzzcompile.reduction.writing import model_lines

# How graphs are captured: dynamo's with every size as it is, dynamo's with sizes read off the inputs, or what
# AOTAutograd makes of them, in which transforms of functions and higher-order operators are gone.
Capture = Literal["static", "dynamic", "aten"]


class Tools(Prober, Protocol):
    """What happens where torch runs: in this process, or in a worker that may be lost."""

    def programs(self, source: str, capture: Capture) -> Sequence[Program]:
        """The graphs of a case, the likeliest to hold the bug first; empty if none can be written down."""

    def judge(self, source: str) -> Mapping[str, object]:
        """The full report on a source, in its JSON form."""

    def become_thorough(self) -> None:
        """From now on, probe as triage judges."""


@dataclass(frozen=True)
class Job:
    """What is to be made small: a source with its report, and the recipe of a generated case.

    ``is_case`` tells a case file from a script; ``screens`` whether the bug may show where graphs are interpreted.
    ``resizes`` says that it may be compiled for any size, ``keeps`` what must stay: "culprit", or "verdict" alone.
    """

    source: str
    report: Mapping[str, object]
    choices: bytes | None = None
    profile: Profile = field(default_factory=Profile)
    is_case: bool = True
    screens: bool = False
    resizes: bool = False
    keeps: str = "culprit"


@dataclass(frozen=True)
class Outcome:
    """A small case, its own report, and the reproducer built from it.

    ``how`` is "recipe", "graph", "text" or "as found"; ``changed`` is false where nothing smaller was found. ``note``
    says in a sentence what a reader should know. ``operators_before`` and ``operators`` count calls of torch functions
    in the captured graphs (None: not captured). ``others`` are generated cases that failed in other ways; ``tally`` has
    the sources of all that did. What was ``interrupted`` is neither judged again nor confirmed.
    """

    source: str
    report: Mapping[str, object]
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
    interrupted: bool = False


def same_bug(wanted: Mapping[str, object], reached: Mapping[str, object], keeps: str = "culprit") -> bool:
    """Whether a report is one of the same bug: the signature, or where a culprit is but guessed, verdict and stage.

    Of a culprit with several families (siblings, operators of one kernel) a smaller case may show fewer. Where
    ``keeps`` is "verdict", the kind of verdict is all that counts.
    """
    if not reached.get("is_bug"):
        return False
    before, after = read(wanted), read(reached)
    if keeps == "culprit" and _share_a_family(before.get("signature"), after.get("signature")):
        return True
    if Verdict(before["verdict"]).kind != Verdict(after["verdict"]).kind:
        return False
    if keeps == "verdict":
        return True
    guessed = "low" in (before.get("confidence"), after.get("confidence"))
    stages = [(report.get("culprit") or {}).get("stage") for report in (before, after)]
    return guessed and (stages[0] == stages[1] or None in stages)


def is_smaller(source: str, program: Program, original: str, captured: Sequence[Program]) -> bool:
    """Whether a program, written as ``source``, is less than the text that its graphs were ``captured`` of."""
    try:
        before = case_part(original)
    except SyntaxError:
        return True
    if source.split() == before.split():
        return False
    same_work = len(captured) == 1 and program.size >= captured[0].size
    return not (same_work and model_lines(source) >= model_lines(before))


def _share_a_family(wanted: str | None, reached: str | None) -> bool:
    """Whether two signatures name the same stage and file, and a family in common."""
    if wanted is None or reached is None or wanted == reached:
        return wanted == reached
    *place, families = wanted.rsplit(":", 1)
    *reached_place, reached_families = reached.rsplit(":", 1)
    return place == reached_place and bool(set(families.split("+")) & set(reached_families.split("+")))
