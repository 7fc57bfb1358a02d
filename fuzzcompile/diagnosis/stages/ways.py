"""Ways to run one thing twice, and the engine that finds where two sides part: the first step, its culprit, its proof.

What a stage makes of a program must mean what the program meant. Each way runs both, pairs their steps, and measures
how far the two values of a step are apart; the first step that parts is worded as a culprit, and proved by a compile
without it. The ways of a stage stand in :mod:`fuzzcompile.diagnosis.stages.stage_table`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fuzzcompile.compiler.compile_changes import Backend, CompileChange, GraphBreak
from fuzzcompile.compiler.graph_breaks import find_captured_calls
from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Ledger
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.model.thresholds import SEMANTIC_STEP
from fuzzcompile.model.verdicts import Verdict

_MAX_CALLS = 2
_FORMS = (Verdict.METADATA, Verdict.ALIASING)
MAX_SUSPECTS = 4
"""Suspects that are tried one by one."""


@dataclass(frozen=True)
class Found:
    """A culprit that a run shows, ``certain`` beyond rounding or not; the change to a compile without it; its proof."""

    culprit: Culprit
    without: CompileChange | None = None
    prove: Proof | None = None
    certain: bool = False


Proof = Callable[[Ablator, Found], Attribution | None]
"""Proves a finding by compiles, which raise OutOfTime once none may be begun; None if they do not."""


@dataclass(frozen=True)
class Suspect:
    """Possible culprit in a stage, seen in a failing compile; nothing is proved yet.

    ``stage``, ``family`` and ``source`` are what a signature holds, so that two suspects of the same bug compare equal.
    ``finding`` is what the stage saw, and ``certain`` says that it leaves no room for rounding.
    """

    stage: str
    family: str
    source: str | None = None
    finding: object = field(default=None, compare=False, repr=False)
    certain: bool = field(default=False, compare=False)

    @classmethod
    def from_found(cls, found: Found) -> Suspect:
        """The culprit that was found as a suspect."""
        culprit = found.culprit
        return cls(culprit.stage, culprit.family, culprit.source, found, found.certain)


class Stage(ABC):
    """One stage of the compiler: all that fuzzcompile knows of it.

    Triage, the shortcut for known bugs and the lock of a reduction ask the stages; nothing else knows their names. A
    stage is stateless, so that one object serves every case.
    """

    name: str
    """As in the JSON contract (:mod:`fuzzcompile.model.stages`)."""
    settings: tuple[Mapping[str, object], ...] = ()
    """Entries of ``torch._inductor.config`` that work around the whole stage, the narrowest first."""

    @abstractmethod
    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """List the suspects that one compile shows, strongest evidence first; compiles nothing."""

    def without(self, suspect: Suspect) -> CompileChange | None:
        """Return the change that leaves the suspect out; None if the compiler cannot do without it."""
        return suspect.finding.without if isinstance(suspect.finding, Found) else None

    def culprit(self, suspect: Suspect) -> Culprit:
        """The suspect as a culprit of which nothing is proved."""
        if isinstance(suspect.finding, Found):
            return suspect.finding.culprit
        return Culprit(self.name, None, suspect.family, suspect.family, source=suspect.source)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The culprit among the stage's suspects, proved by ablations as far as it can be; None if none holds.

        By default as :func:`prove_in_turn` does.
        """
        found = [Found(self.culprit(each), self.without(each), certain=each.certain) for each in suspects]
        return prove_in_turn(ablator, found)

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Settings that may work around the culprit, the narrowest first; ``given`` are the case's own."""
        own = facts().settings.switching_off
        yield from (own[name] for name in list_names(culprit) if name in own)
        yield from self._narrower(culprit, given)
        yield from self.settings

    def _narrower(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        yield from ()


def list_names(culprit: Culprit) -> list[str]:
    """The names that a setting may know a culprit by: its rule's, and its pass's."""
    return [name for name in (culprit.rewrite, culprit.pass_name) if name]


def prove_in_turn(ablator: Ablator, found: Sequence[Found]) -> Attribution | None:
    """The first culprit without which the divergence is gone, or all that are certain together; None if none is."""

    def repairs(found: Sequence[Found]) -> bool:
        return ablator.attempt_under(*(each.without for each in found if each.without is not None))[1]

    tried = [each for each in found if each.without is not None][:MAX_SUSPECTS]
    for each in tried:
        if repairs([each]):
            return Attribution(replace(each.culprit, necessary=True))
    certain = [each for each in tried if each.certain]
    if len(certain) < 2 or not repairs(certain):
        return None
    first, *rest = (each.culprit for each in certain)
    if all((other.rewrite, other.source, other.site) == (first.rewrite, first.source, first.site) for other in rest):
        # One function is at fault, which several stages take for what the operator is.
        return Attribution(replace(first, necessary=True))
    return Attribution(replace(first, confidence="low"), [replace(culprit, confidence="low") for culprit in rest])


def prove_at_call(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved by a compile that leaves its call to eager mode; None if that does not repair.

    Such a compile also keeps apart what stands before and behind the call, so it proves only what was seen otherwise to
    be wrong with the call itself.
    """
    calls = find_captured_calls(ablator.trial.ledger, found.culprit.site, found.culprit.nodes)
    if not calls or len(calls) > _MAX_CALLS:
        return None
    repaired = ablator.attempt_under(GraphBreak(tuple(calls.items())))[1]
    return Attribution(replace(found.culprit, necessary=True, confidence="high")) if repaired else None


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
        first: PartedStep[At] | None = None

        def visit(pair: Pair[At]) -> bool:
            nonlocal first
            first = first or self.measure(pair)
            return first is not None

        self.walk(visit)
        return first

    def find(self) -> Found | None:
        """Find what is at fault where the sides part; None if they do not."""
        parting = self.find_parting()
        return self.word(parting) if parting is not None else None


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


def doubt(ablator: Ablator, found: Found) -> Attribution:
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
    shows: Callable[[Divergence], bool] = lambda seen: seen.is_of_values or seen.verdict in _FORMS
    most: int | None = 1

    def find(self, divergence: Divergence) -> list[Found]:
        """Find what parts first, as many as are asked for."""
        sides = self.sides(divergence) if self.shows(divergence) else ()
        worded = (each.find() if isinstance(each, Sides) else each for each in sides)
        found = (replace(each, prove=self.prove) for each in worded if each is not None)
        return list(itertools.islice(found, self.most))


class SideBySide(Stage):
    """A stage whose culprits are found by running what it is given beside what it makes of that.

    Of what the ways find, in the order of looking, the culprits of this stage count. Where the divergence is gone with
    the backend ``cleared_by``, which has what is in front of the stage, the stage is right.
    """

    def __init__(self, name: str, ways: Sequence[Way], cleared_by: Backend | None = None) -> None:
        self.name, self.ways, self.cleared_by = name, list(ways), cleared_by

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """List the suspects of this stage."""
        found = [each for way in self.ways for each in divergence.once(way.find) if each.culprit.stage == self.name]
        return list(map(Suspect.from_found, found))

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The first culprit that a compile proves; else the first that none cleared, unless the whole stage is."""
        shown = [each.finding for each in suspects if isinstance(each.finding, Found) and each.finding.prove]
        if not shown or (self.cleared_by is not None and ablator.is_repaired_by(self.cleared_by, record=False)):
            return None
        doubted: Attribution | None = None
        for found in shown:
            attribution = found.prove(ablator, found) if found.prove is not None else None
            if attribution is not None and attribution.is_proved:
                return attribution
            doubted = doubted or attribution
        left = (found.culprit for found in shown if found.without is None)
        return doubted or next((Attribution(replace(culprit, confidence="low")) for culprit in left), None)
