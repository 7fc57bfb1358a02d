"""Ways to run one thing twice, and the engine that finds where two sides part: the first step, its culprit, its proof.

What a stage makes of a program must mean what the program meant. Each way runs both, pairs their steps, and measures
how far the two values of a step are apart; the first step that parts is worded as a culprit, and proved by a compile
without it. The ways of a stage stand in :mod:`fuzzcompile.diagnosis.stages.stage_table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fuzzcompile.compiler.compile_changes import Backend, GraphBreak
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.stages.stage import Found, Proof, Stage, Suspect, attempt_backend
from fuzzcompile.model.stages import PRE_GRAD
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

    ``step`` is how far, in units of the larger RMS size; None where no size says it. ``expected`` and ``got`` word the
    difference, where it is not of values alone. ``certain``: nothing leaves room for rounding.
    """

    pair: Pair[At]
    kind: str = "values"
    step: float | None = None
    expected: str = ""
    got: str = ""
    certain: bool = True


Measure = Callable[[Pair[At]], PartedStep[At] | None]
"""Says whether a step parts."""
Visit = Callable[[Pair[At]], bool]
"""Is shown a step of both sides, and says whether one has parted, so that no further step need be made."""


@dataclass(frozen=True)
class Sides(Generic[At]):
    """Both sides of one run.

    ``walk`` runs both, and shows each step that both take, in the order in which they run. ``word`` makes the first
    that ``measure`` tells apart a finding; None where it says nothing.
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


class CapturedGraphs(NamedTuple):
    """The graphs of one stage, with inputs that they got from the program."""

    frame: Frame
    record: GraphRecord
    inputs: Sequence[Any]


def iter_captured(
    ledger: Ledger, *, stage: str = PRE_GRAD, direction: str | None = None, calls: int = 1
) -> Iterator[CapturedGraphs]:
    """The graphs of a stage, dynamo's by default, with the inputs of their first ``calls`` calls."""
    for frame in ledger.frames:
        record = frame.find_record(stage, direction)
        for number in range(calls) if record is not None and record.snapshots else ():
            inputs = find_inputs(frame, record, number) if record is not None else None
            if record is not None and inputs is not None:
                yield CapturedGraphs(frame, record, inputs)


def shows_values(divergence: Divergence) -> bool:
    """Whether values are wrong, if only in float64."""
    return divergence.is_of_values


def shows_forms(divergence: Divergence) -> bool:
    """Whether values are wrong, or a difference in layout or shared memory shows."""
    return divergence.is_of_values or divergence.verdict in (Verdict.METADATA, Verdict.ALIASING)


def doubt(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit with low confidence: no compile can do without it."""
    return Attribution(replace(found.culprit, confidence="low"))


def prove_without(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved by a compile without it; a graph break moves too much to clear anything."""
    if found.without is None:
        return None
    if ablator.attempt_under(found.without)[1]:
        return Attribution(replace(found.culprit, necessary=True, confidence="high"))
    cleared = None if isinstance(found.without, GraphBreak) else False
    return Attribution(replace(found.culprit, necessary=cleared, confidence="low"))


@dataclass(frozen=True)
class Way:
    """One way to run something twice, by its name.

    ``sides`` gives both sides of each graph and call of a divergence, or what was found where many partings had to be
    weighed; it compiles nothing. ``prove`` proves the culprit; None if the order of looking has a proof for several
    ways together. ``shows`` says whether its findings can show as the divergence. Of ``most`` graphs and calls the
    parting is looked for; None for all.
    """

    name: str
    sides: Callable[[Divergence], Iterable[Sides[Any] | Found]]
    prove: Proof | None = doubt
    shows: Callable[[Divergence], bool] = shows_forms
    most: int | None = 1

    def find(self, divergence: Divergence) -> list[Found]:
        """What parts first, as many as are asked for."""
        found: list[Found] = []
        for sides in self.sides(divergence) if self.shows(divergence) else ():
            if isinstance(sides, Sides):
                parting = sides.find_parting()
                worded = sides.word(parting) if parting is not None else None
            else:
                worded = sides
            found += [] if worded is None else [replace(worded, prove=self.prove)]
            if len(found) == self.most:
                break
        return found


class SideBySide(Stage):
    """A stage whose culprits are found by running what it is given beside what it makes of that.

    Of what the ways find, in the order of looking, the culprits of this stage count. Where the divergence is gone with
    the backend ``cleared_by``, which has what is in front of the stage, the stage is right.
    """

    def __init__(self, name: str, ways: Sequence[Way], cleared_by: Backend | None = None) -> None:
        self.name, self.ways, self.cleared_by = name, list(ways), cleared_by

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """What parts in this stage."""
        found = [each for way in self.ways for each in divergence.once(way.find) if each.culprit.stage == self.name]
        return list(map(Suspect.from_found, found))

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The first culprit that a compile proves; else the first as it stands, unless the stage is cleared."""
        shown = [each.finding for each in suspects if isinstance(each.finding, Found) and each.finding.prove]
        if not shown or (self.cleared_by is not None and attempt_backend(ablator, self.cleared_by)):
            return None
        doubted: Attribution | None = None
        for found in shown:
            attribution = found.prove(ablator, found) if found.prove is not None else None
            if attribution is not None and attribution.culprit is not None and attribution.culprit.necessary:
                return attribution
            doubted = doubted or attribution
        return doubted or Attribution(replace(shown[0].culprit, confidence="low"))
