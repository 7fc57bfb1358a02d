"""Ways to run one thing twice, and the engine that finds where two sides part: the first step, its culprit, its proof.

What a stage makes of a program must mean what the program meant. Each way runs both, pairs their steps, and measures
how far the two values of a step are apart; the first step that parts is worded as a culprit, and proved by a compile
without it. The ways of a stage stand in :mod:`fuzzcompile.diagnosis.stages.stage_table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeGuard, TypeVar

import torch

from fuzzcompile.compiler.compile_changes import Backend, CompileChange, GraphBreak
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.operators.operator_suspects import list_lost_check_suspects, make_operator_culprit
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect, attempt_backend, prove_by_break
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict

At = TypeVar("At")


@dataclass(frozen=True)
class Pair(Generic[At]):
    """One step that both sides take: where (a node, a call, the name of an output), and its value on either side."""

    at: At
    left: object
    right: object


@dataclass(frozen=True)
class PartedStep(Generic[At]):
    """The first step whose values are apart.

    ``step`` is how far, in units of the larger RMS size; None where no size says it. ``expected`` and
    ``got`` word the difference where it is not of values alone.
    """

    pair: Pair[At]
    kind: str = "values"
    step: float | None = None
    expected: str = ""
    got: str = ""


@dataclass(frozen=True)
class Found:
    """What a way says of a parting: the culprit, and the change to a compile that leaves it out, if there is one.

    ``prove`` proves it by compiles; the way decides how.
    """

    culprit: Culprit
    without: CompileChange | None = None
    prove: Proof | None = None


Proof = Callable[[Ablator, Found], Attribution | None]
"""Proves what a way has found by compiles; None if they do not."""
Measure = Callable[[Pair[At]], PartedStep[At] | None]
"""Says whether a step parts."""


Visit = Callable[[Pair[At]], bool]
"""Is shown a step of both sides, and says whether one has parted, so that no further step need be made."""


@dataclass(frozen=True)
class Sides(Generic[At]):
    """Both sides of one run.

    Attributes:
        walk: runs both, and shows each step that both take, in the order in which they run.
        word: the finding that the first parting is; None where it says nothing.
        measure: tells a parting.
    """

    walk: Callable[[Visit[At]], None]
    word: Callable[[PartedStep[At]], Found | None]
    measure: Measure[At]

    def find_parting(self) -> PartedStep[At] | None:
        """The first step that parts; None if none does."""
        partings: list[PartedStep[At]] = []

        def visit(pair: Pair[At]) -> bool:
            parting = None if partings else self.measure(pair)
            partings.extend([] if parting is None else [parting])
            return bool(partings)

        self.walk(visit)
        return partings[0] if partings else None


def walk_pairs(pairs: Iterable[Pair[At]]) -> Callable[[Visit[At]], None]:
    """Show pairs that are made one by one, up to the first that parts."""

    def walk(visit: Visit[At]) -> None:
        any(map(visit, pairs))

    return walk


def measure_values(pair: Pair[At]) -> PartedStep[At] | None:
    """Tell a step whose values in float64 are other ones, which rounding does not explain, or have another dtype."""
    step = measure_step(pair.left, pair.right)
    return PartedStep(pair, step=step if math.isfinite(step) else None) if step > SEMANTIC_STEP else None


def measure_step(left: object, right: object) -> float:
    """The change of a tensor in units of its RMS size, infinite where the dtype is another; 0 of what is no tensor."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.dtype != right.dtype:
        return math.inf
    return relative_change(left, right) if isinstance(left, torch.Tensor) else 0.0


def shows_values(divergence: Divergence) -> bool:
    """Whether values are wrong, if only in float64."""
    return divergence.is_of_values


def shows_forms(divergence: Divergence) -> bool:
    """Whether values are wrong, or a difference in layout or shared memory shows."""
    return divergence.is_of_values or divergence.verdict in (Verdict.METADATA, Verdict.ALIASING)


@dataclass(frozen=True)
class Way:
    """One way to run something twice.

    Attributes:
        name: what is run twice, in a few words.
        sides: runs both sides of each graph and call of a divergence; compiles nothing.
        prove: proves the culprit.
        shows: whether what the way finds can show as the divergence that there is.
        most: how many graphs and calls that part are looked for; None for all.
    """

    name: str
    sides: Callable[[Divergence], Iterable[Sides]]  # type: ignore[type-arg]  # each way has steps of its own
    prove: Proof
    shows: Callable[[Divergence], bool] = shows_forms
    most: int | None = 1

    def find(self, divergence: Divergence) -> list[Found]:
        """What parts first, as many as are asked for."""
        found: list[Found] = []
        for sides in self.sides(divergence) if self.shows(divergence) else ():
            parting = sides.find_parting()
            worded = sides.word(parting) if parting is not None else None
            found += [] if worded is None else [replace(worded, prove=self.prove)]
            if len(found) == self.most:
                break
        return found


def _is_lost_check(finding: object) -> TypeGuard[Culprit]:
    # What a kernel's layouts explain was tried before.
    return isinstance(finding, Culprit) and "aten_kernel" not in finding.details


def doubt(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit as it stands: no compile can do without it."""
    return Attribution(found.culprit)


def prove_without(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved by a compile that leaves it out.

    A break of the graph moves more than the call at which it is made: one that does not repair clears nothing.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    if found.without is None:
        return None
    if ablator.attempt_under(found.without)[1]:
        return Attribution(replace(found.culprit, necessary=True, confidence="high"))
    cleared = None if isinstance(found.without, GraphBreak) else False
    return Attribution(replace(found.culprit, necessary=cleared, confidence="low"))


def prove_at_call(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved by a compile that leaves its call to eager mode.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    return prove_by_break(ablator, found.culprit)


class SideBySide(Stage):
    """A stage whose culprits are found by running what it is given beside what it makes of that.

    Args:
        name: the stage.
        ways: in the order of looking.
        cleared_by: the backend in front of the stage: where the divergence is gone with it, the stage is right.
    """

    def __init__(self, name: str, ways: Sequence[Way], cleared_by: Backend | None = None) -> None:
        self.name = name
        self.ways = list(ways)
        self.cleared_by = cleared_by

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """What parts; of a program that eager mode refuses, the operator whose check is lost."""
        if divergence.verdict is Verdict.ACCEPTS_INVALID:
            return [lost for lost in divergence.once(list_lost_check_suspects) if lost.stage == self.name]
        found = [each for way in self.ways for each in divergence.once(way.find)]
        return [Suspect(self.name, each.culprit.family, each.culprit.source, each) for each in found]

    def culprit(self, suspect: Suspect) -> Culprit:
        """The culprit that the suspect is."""
        return suspect.finding.culprit if isinstance(suspect.finding, Found) else make_operator_culprit(suspect)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The first culprit that a compile proves; else the first as it stands, unless the stage is cleared.

        Raises:
            OutOfTime: no further compile may be begun.
        """
        shown = [each.finding for each in suspects if isinstance(each.finding, Found)]
        shown += [Found(each.finding, prove=prove_at_call) for each in suspects if _is_lost_check(each.finding)]
        if not shown or (self.cleared_by is not None and attempt_backend(ablator, self.cleared_by)):
            return None
        doubted: Attribution | None = None
        for found in shown:
            attribution = found.prove(ablator, found) if found.prove is not None else None
            if attribution is not None and attribution.culprit is not None and attribution.culprit.necessary:
                return attribution
            doubted = doubted or attribution
        return doubted or Attribution(replace(shown[0].culprit, confidence="low"))
