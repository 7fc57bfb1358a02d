"""A mix of sources of cases: the generator, torch's own tables, and programs of the compiler's rules."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuzzcompile.fuzz.campaign.case_sources import (
    OPINFO,
    RULE,
    CaseSource,
    DrawnCase,
    GeneratorSource,
    Item,
    OperatorSweep,
)
from fuzzcompile.fuzz.campaign.focus_steering import Arm, FocusSource
from fuzzcompile.model.focus_plan import AimRule, FocusAim
from fuzzcompile.programs.edits.pattern_program import PatternProgram

# Percentage of the places of each further source, before steering knows better.
_SHARES = {OPINFO: 32, RULE: 12}
# One rule has its turn for so many places, while a worker makes the programs of the next one.
_WINDOW = 16
# Percentage of cases that are of a rule whose turn is over.
_EARLIER = 40
# A rule is the first of so many that has not fired yet.
_CHOICE = 8
# Of the cases of a rule, the percentage that are its program as it is.
_UNCHANGED = 25

MakePrograms = Callable[[AimRule, list[PatternProgram]], object]
"""Has the programs of a rule made, and added to a list; a rule over which a worker is lost has none."""


@dataclass
class RuleSource(CaseSource):
    """Programs of the rules of a plan and near misses of them; workers make the programs of one rule after another.

    A rule that has not fired yet comes before others. While its programs are not there, those of earlier ones are drawn
    from.
    """

    focus: FocusSource
    make: MakePrograms
    _fired: Set[Item] = frozenset()
    _chosen: dict[int, FocusAim] = field(default_factory=dict)
    _made: dict[AimRule, list[PatternProgram]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its part in the stream."""
        return RULE

    def share_reached(self, reached: Set[Item]) -> None:
        """Take a view of the items that were reached."""
        self._fired = reached

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Return a case of the rule whose turn it is, or of one whose turn is over; None if no program is known."""
        now, rng = self.prepare(seed, index), random.Random(f"fuzzcompile rule {seed} {index} {candidate}")
        known = {aim.label: aim for _, aim in sorted(self._chosen.items()) if self._made.get(aim.sources[0])}
        if not known:
            return None
        earlier = now.label not in known or rng.randrange(100) < _EARLIER
        aim = rng.choice(list(known.values())) if earlier else now
        programs = self._made[aim.sources[0]]
        arm: Arm = "program" if rng.randrange(100) < _UNCHANGED else "near_miss"
        case = replace(self.focus, programs=programs).draw(aim, arm, seed, index, rng)
        return replace(case, features=(RULE, *case.features))

    def prepare(self, seed: int, index: int) -> FocusAim:
        """Let workers make the programs of the next rule too; return the rule whose turn it is at this place."""
        aims = [self._choose(seed, index // _WINDOW + ahead) for ahead in (0, 1)]
        for aim in aims:
            self._request(aim.sources[0])
        return aims[0]

    def _choose(self, seed: int, window: int) -> FocusAim:
        if window not in self._chosen:
            rng, groups = random.Random(f"fuzzcompile rules {seed} {window}"), self._groups
            some = [rng.choice(groups[name]) for name in rng.choices(sorted(groups), k=_CHOICE)]
            new = (aim for aim in some if (*aim.sources[0], "fired") not in self._fired)
            self._chosen[window] = next(new, some[0])
        return self._chosen[window]

    @cached_property
    def _groups(self) -> Mapping[str, Sequence[FocusAim]]:
        """The rules by name; variants of one are numbered."""
        groups = defaultdict[str, list[FocusAim]](list)
        for aim in self.focus.plan.reachable:
            groups[re.split(r"\d", aim.label)[0]].append(aim)
        return groups

    def _request(self, rule: AimRule) -> None:
        if rule not in self._made:
            self._made[rule] = []
            self.make(rule, self._made[rule])


@dataclass
class TableSource(CaseSource):
    """Cases of torch's own tables, one operator after another."""

    sweep: OperatorSweep

    @property
    def name(self) -> str:
        """The name of its part in the stream."""
        return OPINFO

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Draw a case of an operator; there is one candidate for a place."""
        if candidate:
            return None
        case = self.sweep.draw(random.Random(f"fuzzcompile tables {seed} {index}"))
        return None if case is None else replace(case, features=(OPINFO, *case.features))


@dataclass
class MixedSource(CaseSource):
    """Cases of the generator and, in fixed shares unless a kind is asked for, of other sources."""

    generator: GeneratorSource
    rules: RuleSource | None = None
    tables: TableSource | None = None

    @property
    def others(self) -> Sequence[CaseSource]:
        """The sources beside the generator."""
        return [source for source in (self.rules, self.tables) if source is not None]

    @property
    def name(self) -> str:
        """The names of all parts."""
        return " ".join(filter(None, (self.generator.name, "mixed=" + ",".join(other.name for other in self.others))))

    @property
    def profile(self) -> Mapping[str, object]:
        """The generator's profile."""
        return self.generator.profile

    def share_reached(self, reached: Set[Item]) -> None:
        """Let the source of rules see what was reached."""
        if self.rules is not None:
            self.rules.share_reached(reached)

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Draw a case of one of the sources, the generator's where that has none here."""
        if self.rules is not None:
            self.rules.prepare(seed, index)
        share = random.Random(f"fuzzcompile mixed {seed} {index}").randrange(100)
        for other in self.others:
            share -= _SHARES[other.name]
            if share < 0:
                return other.at(seed, index, candidate) or self.generator.at(seed, index, candidate)
        return self.generator.at(seed, index, candidate)

    def of_kind(self, kind: str, seed: int, index: int, candidate: int = 0) -> DrawnCase | None:
        """Draw a case of a kind; None if there is none here."""
        own = next((other for other in self.others if other.name == kind), None)
        if own is not None:
            return own.at(seed, index, candidate)
        return self.generator.of_kind(kind, seed, index, candidate)

    def of(self, choices: bytes) -> DrawnCase | None:
        """Return the generator's case for a recipe."""
        return self.generator.of(choices)
