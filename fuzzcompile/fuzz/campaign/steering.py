"""Chooses the next case: features that still lead to something new are drawn more often.

Every place in the stream gets a few candidates, and the one whose features have lately found most is judged; some
places mutate the recipe of a case that was the first to reach something. A rewrite, a refusal, a decomposition, a
lowering, a kind of kernel or a signature counts as new if no earlier case had it.

The choice depends only on the seed and on the results of places at least a block earlier, the order of magnitude of
their seconds among them. So a campaign draws the same cases whichever worker is faster, unless one case takes as long
as a whole block: its result then counts later.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fuzzcompile.corpus.records import Finding, Seed, StreamRun
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import PLACES, find_part
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase, Item, classify_features
from fuzzcompile.fuzz.generation.cases import KINDS
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.stages import LOWERING, SCHEDULER
from fuzzcompile.model.verdicts import Verdict

# The places of a stream that one campaign judges.

# Each part of a finite stream begins this share of the stream after the previous part, so that few parts or many begin
# far from each other (the golden ratio).
_GOLDEN_RATIO = 0.6180339887498949


def list_places(part: int, size: int | None) -> Iterable[int]:
    """Return the places of a part, in order.

    Parts of a finite stream share its places: each begins elsewhere, and skips the places that others have judged.
    """
    if size is None:
        return itertools.count(part * PLACES)
    begin = int(part * _GOLDEN_RATIO % 1.0 * size)
    return itertools.chain(range(begin, size), range(begin))


def sort_own_last(past: Sequence[StreamRun], part: int) -> list[StreamRun]:
    """Sort the judged cases of a stream, those of a part last: the results learned last count most."""
    return sorted(past, key=lambda run: (find_part(run.index) == part, run.index))


Mix = Literal["mixed", "screen", "full"]
# The stage of a signature among the items that were reached.
FINDING = "finding"
# Results are learned by blocks, one block late.
BLOCK = 16
# Cost of a full compile in units of a screen (measured: bench/throughput.py).
FULL_COST = 8.0
# Bounds of the share of full compiles: each speed finds bugs that the other cannot.
_LEAST_FULL, _MOST_FULL = 0.1, 0.9
# Only full compiles reach these stages; a preference for idioms must not depend on the speed that a case got.
_FULL_ONLY = (LOWERING, SCHEDULER)
_WORTH = {SCHEDULER: 0.25}
# What a finding is worth by its severity, beside a rule that fired for the first time.
_WORTH_OF_FINDING = {
    Severity.SILENT: 8.0,
    Severity.ERROR: 4.0,
    Severity.ALIASING: 4.0,
    **dict.fromkeys((Severity.RAISING_LAYOUT, Severity.OPT_IN), 2.0),
}
# Share of a feature's counts that is kept after each block, so that exhausted features are abandoned.
_MEMORY = 0.9
_MOST_PARENTS = 128
# Seconds of a case that was over at once: below this, the cost of a place is the campaign's own.
_LEAST_SECONDS = 0.25
# The fixed cost of a case, and the average cost of cases, in characters of source.
_BASE_LENGTH, _MEAN_LENGTH = 500, 1500


@dataclass(frozen=True)
class Strategy:
    """Parameters of filling the places in the stream; bench/steering.py compares strategies."""

    candidates: int = 4  # how many cases are drawn for a place; the most promising is judged
    pairs: float = 0.5  # weight of pairs of features that were never judged together
    wholes: float = 0.5  # weight of a set of features that was never judged
    kinds: float = 0.5  # share of places whose kind of case follows each kind's yield a second instead of the draw
    mutated: float = 0.1  # share of places that mutate the recipe of an earlier case
    climbing: float = 0.25  # share of these that start from the case whose rewrites moved float64 most without a bug
    thrift: float = 1.0  # exponent of a candidate's cost: 0 compares candidates by promise, 1 by promise per cost


UNIFORM = Strategy(candidates=1, pairs=0.0, wholes=0.0, kinds=0.0, mutated=0.0, climbing=0.0)


@dataclass(frozen=True)
class PlaceOutcome:
    """The result of a place in the stream: the items that it reached, and the largest step in float64.

    ``severity`` is that of the bug that it shows, and ``seconds`` what judging it took a worker.
    """

    drawn: DrawnCase
    items: frozenset[Item]
    screened: bool
    float64_step: float | None = None
    severity: Severity | None = None
    seconds: float = 1.0


@dataclass(frozen=True)
class RecipeParent:
    """A recipe worth mutating."""

    choices: bytes
    worth: float
    float64_step: float


@dataclass
class Yield:
    """Discounted counts of tries and finds."""

    tried: float = 0.0
    found: float = 0.0

    @property
    def rate(self) -> float:
        """Finds per try; 1 before the first try."""
        return (self.found + 1.0) / (self.tried + 1.0)

    def count(self, found: float, tried: float = 1.0) -> None:
        """Add the finds of ``tried`` tries."""
        self.tried += tried
        self.found += found

    def sample(self, rng: random.Random, prior: float = 1.0) -> float:
        """Sample the share of tries that find something, so that what was rarely tried gets tried (Thompson)."""
        return rng.betavariate(prior + self.found, 1.0 + self.tried - self.found)


@dataclass
class StreamSteering:
    """Fills the places of one stream. Results may arrive in any order; they are learned by blocks, one block late."""

    source: CaseSource
    seed: int
    mix: Mix = "mixed"
    _waiting: dict[int, PlaceOutcome] = field(default_factory=dict, init=False)
    _block: int = field(default=0, init=False)
    block: ClassVar[int] = BLOCK

    @property
    def is_seeking(self) -> bool:
        """True if minimizing has to wait, because an aim has not matched yet."""
        return False

    def resume(self, seen: Iterable[Item], past: Iterable[StreamRun], seeds: Iterable[Seed]) -> None:
        """Restore the state from the corpus: all items reached, and this stream's earlier cases."""

    def at(self, index: int) -> tuple[DrawnCase, bool] | None:
        """Return the case for a place in the stream, and whether to screen it first; None if there is none."""
        raise NotImplementedError

    def add_reached(self, items: Set[Item]) -> None:
        """Add the items that other campaigns reached: they are no longer new."""

    def learn(self, index: int, outcome: PlaceOutcome) -> None:
        """Keep the result of the case at a place until its block is learned."""
        self._waiting[index] = outcome

    def _learn_blocks(self, index: int) -> None:
        block, part = index // self.block, find_part(index)
        if part != find_part(self._block * self.block):  # its blocks are counted from here
            self._block = block - 1
        if block <= self._block:
            return
        for _ in range(min(block - self._block, 100)):
            self._forget()
        self._block = block
        ended = [place for place in self._waiting if place < (block - 1) * self.block or find_part(place) != part]
        for place in sorted(ended):
            self._apply(self._waiting.pop(place))

    def _forget(self) -> None: ...

    def _apply(self, outcome: PlaceOutcome) -> None: ...


@dataclass
class Steering(StreamSteering):
    """Chooses among cases by what their features have found."""

    strategy: Strategy = field(default_factory=Strategy)
    seen: set[Item] = field(default_factory=set)
    _features: defaultdict[str, Yield] = field(default_factory=lambda: defaultdict(Yield))
    _speeds: defaultdict[tuple[str, bool], Yield] = field(default_factory=lambda: defaultdict(Yield))
    _kinds: defaultdict[str, Yield] = field(default_factory=lambda: defaultdict(Yield))
    _pairs: set[tuple[str, str]] = field(default_factory=set)
    _wholes: set[frozenset[str]] = field(default_factory=set)
    _parents: list[RecipeParent] = field(default_factory=list)

    def resume(self, seen: Iterable[Item], past: Iterable[StreamRun], seeds: Iterable[Seed]) -> None:
        """Credit the features of earlier cases, and take over the recipes worth mutating."""
        self.seen |= set(seen)
        self.source.share_reached(self.seen)
        block = 0
        for run in past:
            if run.index // BLOCK != block:
                block = run.index // BLOCK
                self._forget()
            found = _rate_finding(run.severity) if run.severity is not None else 0.0
            worth = float(run.firsts) + found
            self._credit(run.features, bool(worth))
            kind = classify_features(run.features)
            self._speeds[kind, run.screened].count(worth)
            self._kinds[kind].count(max(found, min(worth, 1.0)), _round_cost(run.seconds))
        self._block = block
        self._parents += [RecipeParent(seed.choices, float(seed.firsts), seed.float64_step or 0.0) for seed in seeds]

    def at(self, index: int) -> tuple[DrawnCase, bool] | None:
        """Draw candidates, or mutate a recipe, and choose the most promising."""
        self._learn_blocks(index)
        rng = random.Random(f"fuzzcompile steering {self.seed} {index}")
        full = rng.random()  # drawn in every mix, so that the draws after it are the same
        mutated = rng.random() < self.strategy.mutated
        drawn = (self._mutate_parent(rng) if mutated else None) or self._choose(index, rng)
        if drawn is None:
            return None
        screened = not (self.mix == "mixed" and drawn.needs_code) and full >= self.full_share(drawn.kind)
        return drawn, screened

    def add_reached(self, items: Set[Item]) -> None:
        """Count these items as seen."""
        self.seen |= items

    def full_share(self, kind: str = KINDS[0]) -> float:
        """Return the share of the cases of a kind that are judged in full at once."""
        if self.mix != "mixed":
            return float(self.mix == "full")
        full, screen = (self._speeds[kind, screened].rate for screened in (False, True))
        share = full / FULL_COST / (full / FULL_COST + screen)
        return min(_MOST_FULL, max(_LEAST_FULL, share))

    # -- drawing ----------------------------------------------------------------------------------

    def _choose(self, index: int, rng: random.Random) -> DrawnCase | None:
        candidates = self._draw_candidates(index, rng)
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        names = sorted({name for candidate in candidates for name in candidate.features})
        promise = {name: self._features[name].sample(rng) for name in names}
        return max(candidates, key=lambda candidate: self._score(candidate, promise))

    def _draw_candidates(self, index: int, rng: random.Random) -> list[DrawnCase]:
        """Draw cases that compete for a place, all of one kind: scores across kinds would set the shares of kinds."""
        wanted = self._choose_kind(rng)
        first = self.source.of_kind(wanted, self.seed, index) if wanted is not None else None
        first = first or self.source.at(self.seed, index)
        if first is None:
            return []
        numbers = range(1, self.strategy.candidates)
        drawn = (self.source.of_kind(first.kind, self.seed, index, number) for number in numbers)
        return [first, *(case for case in drawn if case is not None and case.kind == first.kind)]

    def _choose_kind(self, rng: random.Random) -> str | None:
        if rng.random() >= self.strategy.kinds or len(self._kinds) < 2:
            return None
        kinds = sorted(self._kinds)
        return rng.choices(kinds, [self._kinds[kind].rate for kind in kinds])[0]

    def _score(self, candidate: DrawnCase, promise: dict[str, float]) -> float:
        if not candidate.features:
            return 0.0
        mean = sum(promise[name] for name in candidate.features) / len(candidate.features)
        pairs = _list_pairs(candidate.features)
        untried = sum(pair not in self._pairs for pair in pairs) / len(pairs) if pairs else 0.0
        whole = frozenset(candidate.features) not in self._wholes
        cost = math.pow(_estimate_cost(candidate.source), self.strategy.thrift)
        return (mean + self.strategy.pairs * untried + self.strategy.wholes * whole) / cost

    def _mutate_parent(self, rng: random.Random) -> DrawnCase | None:
        if not self._parents:
            return None
        if rng.random() < self.strategy.climbing:
            parent = max(self._parents, key=lambda candidate: candidate.float64_step)
        else:
            parent = rng.choices(self._parents, [candidate.worth for candidate in self._parents])[0]
        donor = rng.choice(self._parents)
        return self.source.of(mutate(parent.choices, donor.choices, rng))

    # -- learning ---------------------------------------------------------------------------------

    def _apply(self, outcome: PlaceOutcome) -> None:
        new = outcome.items - self.seen
        self.seen |= new
        early = [item for item in new if item[0] not in _FULL_ONLY]
        self._credit(outcome.drawn.features, bool(early))
        found = _rate_finding(outcome.severity)
        worths = {item: found if item[0] == FINDING else _WORTH.get(item[0], 1.0) for item in new}
        worth = sum(worths.values())
        self._speeds[outcome.drawn.kind, outcome.screened].count(worth)
        best = max((worths[item] for item in early), default=0.0)
        self._kinds[outcome.drawn.kind].count(best, _round_cost(outcome.seconds))
        step = 0.0 if outcome.severity is not None else outcome.float64_step or 0.0
        if new and outcome.drawn.choices:
            self._parents.append(RecipeParent(outcome.drawn.choices, worth, step))
            del self._parents[:-_MOST_PARENTS]

    def _credit(self, features: Sequence[str], found: bool) -> None:
        for name in features:
            self._features[name].count(found)
        self._pairs |= _list_pairs(features)
        self._wholes.add(frozenset(features))

    def _forget(self) -> None:
        for known in (*self._features.values(), *self._speeds.values(), *self._kinds.values()):
            known.tried *= _MEMORY
            known.found *= _MEMORY


def _estimate_cost(source: str) -> float:
    """Estimate the cost of judging a case, 1 on average: tracing, rewriting and codegen grow with the program."""
    return (_BASE_LENGTH + len(source)) / _MEAN_LENGTH


def _rate_finding(severity: Severity | None) -> float:
    return _WORTH_OF_FINDING.get(severity, 1.0) if severity is not None else 0.0


def _round_cost(seconds: float) -> float:
    """Round seconds to a power of two, so that the same cases are drawn on a machine that is a little slower."""
    return 2.0 ** round(math.log2(max(seconds, _LEAST_SECONDS)))


def mutate(choices: bytes, donor: bytes, rng: random.Random) -> bytes:
    """Change a recipe in one to four places: replace, drop or repeat bytes, or graft the end of ``donor`` on."""
    changed = bytearray(choices or b"\0")
    for _ in range(rng.randint(1, 4)):
        place, way = rng.randrange(len(changed)), rng.random()
        if way < 0.6:
            changed[place] = rng.randrange(256)
        elif way < 0.75:
            del changed[place : place + rng.randint(1, 8)]
        elif way < 0.85:
            changed[place:place] = changed[place : place + rng.randint(1, 8)]
        else:
            changed = changed[:place] + bytearray(donor)[place:]
        changed = changed or bytearray(b"\0")
    return bytes(changed)


def collect_items(coverage: Collection[tuple[str, str, str]], signature: str | None) -> frozenset[Item]:
    """Return the items that a judged case reached, its signature included."""
    hit = {(FINDING, signature, "fired")} if signature is not None else set()
    return frozenset({*coverage, *hit})


def _list_pairs(features: Sequence[str]) -> set[tuple[str, str]]:
    listed = sorted(set(features))
    return set(itertools.combinations(listed, 2))


# Coverage and proofs that concurrent campaigns on one corpus share with each other.


class CoverageExchange:
    """Merges coverage and proofs of other campaigns into this one; each call reads only entries that are new.

    Only coverage under the same ``compiler`` counts (`fuzzcompile.corpus.records.identify_compiler`).
    """

    def __init__(self, store: Store, compiler: str, needs_no_proof: Callable[[Finding], bool]) -> None:
        self._store, self._compiler, self._needs_no_proof = store, compiler, needs_no_proof
        self._since = store.news(compiler, None).since

    def merge_news(self, hear: Callable[[Set[Item]], None], known: set[tuple[str, str]]) -> None:
        """Pass the new coverage to the steering; extend the signatures and kinds of bug that need no proof."""
        news = self._store.news(self._compiler, self._since)
        self._since = news.since
        reached = {(row.stage, row.rewrite, str(row.outcome)) for row in news.reached}
        hear(reached | {(FINDING, signature, "fired") for signature in news.signatures})
        unproved = news.hit - {signature for signature, _ in known}
        for finding in self._store.findings_named(unproved) if unproved else ():
            if self._needs_no_proof(finding):
                known.add((finding.signature, Verdict(finding.verdict).kind))
