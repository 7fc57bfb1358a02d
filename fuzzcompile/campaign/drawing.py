"""Where a campaign's cases come from: the generator, or variations of a user's own case."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from fuzzcompile.generation import GeneratedCase, Profile, StaleRecipe, case_at, from_choices

if TYPE_CHECKING:
    from fuzzcompile.variations import Survey

# Beyond any index, so that further candidates for an index never coincide with another index.
_CANDIDATES_APART = 10**12


@dataclass(frozen=True)
class Drawn:
    """A case to be judged.

    Attributes:
        source: the program.
        origin: ``generated``, ``mutated``, ``varied``, ``opinfo``, ``user`` or ``reduction``.
        features: what steering can prefer: idioms, operators, choices.
        choices: the recipe of a generated case; empty for one that cannot be drawn again.
        spec: what the corpus keeps about how the case was made.
        idioms: the idioms of a generated case.
        near_misses: its near misses, or the operators of a variation.
    """

    source: str
    origin: str
    features: tuple[str, ...] = ()
    choices: bytes = b""
    spec: Mapping[str, object] | None = None
    idioms: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """The hash that identifies the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def kind(self) -> str:
        """See `kind_of`; only cases of one kind compete for a place in the stream."""
        return kind_of(self.features)


def recipe_of(choices: bytes | None, spec: Mapping[str, object] | None) -> tuple[bytes | None, Profile]:
    """The recipe of a case: its choices, and the profile without which they mean nothing.

    Returns:
        No choices where there is no recipe, or a generator of another version wrote it.
    """
    profile = (spec or {}).get("profile")
    if not isinstance(profile, dict):
        return choices or None, Profile()
    try:
        return choices or None, Profile.from_json(profile)
    except StaleRecipe:
        return None, Profile()


def kind_of(features: Collection[str]) -> str:
    """The kind of case that has these features: ``plain`` or, for all others, empty."""
    return "plain" if "plain" in features else ""


class Source(Protocol):
    """What cases are drawn from; equal arguments give equal cases."""

    @property
    def name(self) -> str:
        """Distinguishes its stream from those of other sources; empty for the plain generator."""

    @property
    def profile(self) -> Mapping[str, object] | None:
        """The settings under which its recipes can be read; None where there are no recipes."""

    @property
    def size(self) -> int | None:
        """How many places its stream has; None for no end."""

    @property
    def account(self) -> Mapping[str, object]:
        """What the summary says of the source itself; empty if nothing."""

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn | None:
        """The ``candidate``-th case for a place in the stream; None for a place that has none."""

    def of(self, choices: bytes) -> Drawn | None:
        """The case of a recipe; None for bytes that are no recipe."""


class Endless:
    """A source whose stream has no end and of which there is nothing to say."""

    @property
    def size(self) -> None:
        """None: there is no end."""

    @property
    def account(self) -> Mapping[str, object]:
        """Empty: there is nothing to say."""
        return {}


class WithoutRecipes:
    """A source whose cases are not drawn from choices, and so cannot be drawn again from them."""

    @property
    def profile(self) -> None:
        """None: there are no recipes."""
        return

    def of(self, choices: bytes) -> Drawn | None:
        """None: there are no recipes."""
        return None


@dataclass(frozen=True)
class Generator(Endless):
    """Cases of the generator under a profile."""

    settings: Profile = field(default_factory=Profile)

    @property
    def name(self) -> str:
        """Empty unless near misses are left out."""
        return "" if self.settings.near_misses else "no-near-misses"

    @property
    def profile(self) -> Mapping[str, object]:
        """The profile as plain data, as the corpus keeps it."""
        return self.settings.to_json()

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """The ``candidate``-th case for a place in the stream."""
        return self.drawn(case_at(seed, index + candidate * _CANDIDATES_APART, self.settings), "generated")

    def of(self, choices: bytes) -> Drawn | None:
        """The case of a recipe that may have been mutated; None if the bytes give no case."""
        try:
            return self.drawn(from_choices(choices, self.settings), "mutated")
        except ValueError:
            return None

    def drawn(self, case: GeneratedCase, origin: str) -> Drawn:
        """Wrap a generated case; see `Drawn` for ``origin``."""
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
class Variations(Endless, WithoutRecipes):
    """The user's own case and variations of it. They have no recipes: the source itself is varied."""

    survey: Survey

    @property
    def name(self) -> str:
        """``from=`` and a hash of the varied source."""
        return f"from={hashlib.sha256(self.survey.source.encode()).hexdigest()[:12]}"

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """The ``candidate``-th variation for a place in the stream; index 0 is the case itself."""
        from fuzzcompile.variations import vary  # needs torch, which the campaign's own process does without

        if index == 0:
            return Drawn(self.survey.source, "user", ("as_given",))
        varied = vary(self.survey, random.Random(f"fuzzcompile {seed} {index} {candidate}"))
        spec = {"from": self.survey.name, "operators": list(varied.operators)}
        return Drawn(varied.source, "varied", varied.operators, spec=spec, near_misses=varied.operators)
