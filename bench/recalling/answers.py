"""What became of a mutant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recalling.mutation import Mutation

ERRORS = ("compile_error", "runtime_error", "crash", "timeout")
"""Verdicts of a compile that fails rather than being wrong in silence."""
OUTCOMES = ("found", "loud", "no change", "rounding", "missed", "not reached", "not installable")


@dataclass(frozen=True)
class Attempt:
    """One case judged under a mutant.

    Attributes:
        case: its SHA-256.
        screen: it was judged without generated code, unless that showed a bug.
        probe: the compiler as it is reaches the line on it.
        reached: the mutated code ran.
        verdict: empty if the case could not be judged.
        same_values: its compile gave the bytes and layouts that the compiler as it is gives.
        same_code: the same code was generated, or none.
        in_float64: where they differ, whether the program compiled in float64 is right.
        named: how precisely the report names the mutated place.
        seconds: processor time; of a lost worker, the time until it was lost.
    """

    case: str
    screen: bool
    probe: bool = True
    reached: bool = False
    verdict: str = ""
    is_bug: bool = False
    same_values: bool = True
    same_code: bool = True
    in_float64: bool | None = None
    named: str = ""
    culprit: Sequence[str] = ()
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """What became of a mutant.

    Attributes:
        mutation: its fields.
        stage: its stage.
        outcome: one of `OUTCOMES`: ``found`` in silence (some compile that reached the line did not fail by itself),
            ``loud`` (every one failed), or of a survivor: ``no change`` (bytes and layouts as without the mutation on
            every case that reached the line), ``rounding`` (bytes differ, and the program compiled in float64 is
            right on each of these cases), ``missed`` (values differ in a way that float64 does not clear).
        same_code: of a survivor without change: the same code was generated each time.
        attempts: the cases judged; of those that showed nothing, only those whose values differed.
    """

    mutation: dict[str, Any]
    stage: str
    outcome: str = ""
    verdict: str = ""
    named: str = ""
    culprit: Sequence[str] = ()
    tried: int = 0
    reached: int = 0
    same_code: bool = True
    seconds: float = 0.0
    detail: str = ""
    attempts: Sequence[dict[str, Any]] = field(default_factory=list)

    @property
    def is_installed(self) -> bool:
        """Whether the mutant could be made."""
        return self.outcome != "not installable"

    @property
    def is_shown(self) -> bool:
        """Whether some case showed a bug."""
        return self.outcome in ("found", "loud")

    @property
    def of(self) -> Mutation:
        """The mutation."""
        return Mutation.from_json(self.mutation)


def outcome_of(answer: Answer, attempts: Sequence[Attempt]) -> Answer:
    """The answer that the cases judged give."""
    reached = [attempt for attempt in attempts if attempt.reached and attempt.verdict]
    bugs = [attempt for attempt in attempts if attempt.is_bug]
    kept = [asdict(attempt) for attempt in attempts if attempt.is_bug or not attempt.same_values or not attempt.verdict]
    answer = replace(answer, tried=len(attempts), reached=len(reached), attempts=kept)
    if bugs:
        silent = [attempt for attempt in bugs if attempt.verdict not in ERRORS]
        first = (silent or bugs)[0]
        loud = not silent and all(attempt.is_bug for attempt in reached)
        return replace(
            answer,
            outcome="loud" if loud else "found",
            verdict=first.verdict,
            named=first.named,
            culprit=first.culprit,
            detail=first.detail,
        )
    differing = [attempt for attempt in reached if not attempt.same_values]
    if not reached:
        outcome = "not reached"
    elif not differing:
        outcome = "no change"
    else:
        outcome = "rounding" if all(attempt.in_float64 for attempt in differing) else "missed"
    return replace(answer, outcome=outcome, same_code=all(attempt.same_code for attempt in reached))


def read_answers(path: Path) -> list[Answer]:
    """The answers stored so far, the last of each mutant; a line that a kill cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    answers = [Answer(**json.loads(line)) for line in lines if line.endswith("}")]
    return list({answer.of.id: answer for answer in answers}.values())
