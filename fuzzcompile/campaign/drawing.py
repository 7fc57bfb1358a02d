"""Where a campaign's cases come from: the generator, or variations of a user's own case."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from fuzzcompile.generation import GeneratedCase, Profile, case_at, from_choices
from fuzzcompile.variations import Survey, vary

# Far beyond any index: further candidates for a place in the stream are drawn from places of their own.
_CANDIDATES_APART = 10**12


@dataclass(frozen=True)
class Drawn:
    """A case to be judged: its source, how it came about, and what it is made of.

    ``features`` name what a campaign can prefer: idioms, operators, choices. ``choices`` are the recipe of a generated
    case (empty for one that cannot be drawn again), ``spec`` is what the corpus keeps of it. Only cases of one ``kind``
    compete for a place in the stream.
    """

    source: str
    origin: str
    features: tuple[str, ...] = ()
    choices: bytes = b""
    spec: Mapping[str, Any] | None = None
    idioms: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Names the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def kind(self) -> str:
        """See `kind_of`."""
        return kind_of(self.features)


def kind_of(features: Collection[str]) -> str:
    """The kind of case that has these features: ``plain`` or, for all others, empty."""
    return "plain" if "plain" in features else ""


class Source(Protocol):
    """Something that cases are drawn from, the same for the same arguments."""

    @property
    def name(self) -> str:
        """What tells its stream of cases from those of other sources; empty for the plain generator."""

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """Under which settings recipes can be read again; None where there are no recipes."""

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """The ``candidate``-th case for a place in the stream."""

    def of(self, choices: bytes) -> Drawn | None:
        """The case that a recipe spells; None where it spells none."""


@dataclass(frozen=True)
class Generator:
    """Cases of the generator under a profile."""

    settings: Profile = field(default_factory=Profile)

    @property
    def name(self) -> str:
        """Near misses are drawn unless the name says otherwise."""
        return "" if self.settings.near_misses else "no-near-misses"

    @property
    def profile(self) -> Mapping[str, Any]:
        """The profile as plain data, as the corpus keeps it."""
        return self.settings.to_json()

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """The ``candidate``-th case for a place in the stream."""
        return self.drawn(case_at(seed, index + candidate * _CANDIDATES_APART, self.settings), "generated")

    def of(self, choices: bytes) -> Drawn | None:
        """The case that a recipe, which may have been changed at will, spells."""
        try:
            return self.drawn(from_choices(choices, self.settings), "mutated")
        except ValueError:
            return None

    def drawn(self, case: GeneratedCase, origin: str) -> Drawn:
        """A generated case as a campaign takes it."""
        return Drawn(
            case.source,
            origin,
            case.features,
            case.choices,
            {"profile": self.profile, "case": case.spec.to_json()},
            tuple(case.spec.idioms),
            tuple(case.spec.near_misses),
        )


@dataclass(frozen=True)
class Variations:
    """The user's own case, and variations of it. They have no recipes: choices are made on its text."""

    survey: Survey

    @property
    def name(self) -> str:
        """The hash of what is varied."""
        return f"from={hashlib.sha256(self.survey.source.encode()).hexdigest()[:12]}"

    @property
    def profile(self) -> None:
        """There are no recipes to be read again."""
        return

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """The ``candidate``-th variation for a place in the stream; the first place is that of the case itself."""
        if index == 0:
            return Drawn(self.survey.source, "user", ("as_given",))
        varied = vary(self.survey, random.Random(f"fuzzcompile {seed} {index} {candidate}"))
        spec = {"from": self.survey.name, "operators": list(varied.operators)}
        return Drawn(varied.source, "varied", varied.operators, spec=spec, near_misses=varied.operators)

    def of(self, choices: bytes) -> Drawn | None:
        """No recipe spells a variation."""
        return None
