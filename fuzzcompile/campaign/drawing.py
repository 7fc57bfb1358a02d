"""The sources of a campaign's cases: the generator, and variations of a user's own case."""

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
        features: names that steering can prefer: idioms, operators, choices.
        choices: the recipe of a generated case; empty for one that cannot be drawn again.
        spec: the description of how the case was made, as the corpus keeps it.
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
    """Return the recipe of a case: its choices, and the profile under which they can be read.

    Returns:
        None for the choices where there is no recipe, or where another version of the generator wrote it.
    """
    profile = (spec or {}).get("profile")
    if not isinstance(profile, dict):
        return choices or None, Profile()
    try:
        return choices or None, Profile.from_json(profile)
    except StaleRecipe:
        return None, Profile()


def kind_of(features: Collection[str]) -> str:
    """Return the kind of case that has these features: ``plain``, or the empty string for all others."""
    return "plain" if "plain" in features else ""


class Source(Protocol):
    """A source of cases; equal arguments give equal cases."""

    @property
    def name(self) -> str:
        """The name that distinguishes its stream from those of other sources; empty for the plain generator."""

    @property
    def profile(self) -> Mapping[str, object] | None:
        """The settings under which its recipes can be read; None where there are no recipes."""

    @property
    def size(self) -> int | None:
        """The number of places in its stream; None for an endless stream."""

    @property
    def account(self) -> Mapping[str, object]:
        """The entries of the summary about the source itself; may be empty."""

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn | None:
        """Return the ``candidate``-th case for a place in the stream; None for a place that has none."""

    def of(self, choices: bytes) -> Drawn | None:
        """Return the case of a recipe; None for bytes that are no recipe."""


class Endless:
    """A source with an endless stream and an empty account."""

    @property
    def size(self) -> None:
        """None: the stream is endless."""

    @property
    def account(self) -> Mapping[str, object]:
        """Empty: the summary has no entries about this source."""
        return {}


class WithoutRecipes:
    """A source whose cases are not drawn from choices, and so have no recipes."""

    @property
    def profile(self) -> None:
        """None: there are no recipes."""
        return

    def of(self, choices: bytes) -> Drawn | None:
        """Return None: there are no recipes."""
        return None


@dataclass(frozen=True)
class Generator(Endless):
    """Cases of the generator under a profile."""

    settings: Profile = field(default_factory=Profile)

    @property
    def name(self) -> str:
        """The empty string, unless near misses are left out."""
        return "" if self.settings.near_misses else "no-near-misses"

    @property
    def profile(self) -> Mapping[str, object]:
        """The profile as plain data, as the corpus keeps it."""
        return self.settings.to_json()

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """Return the ``candidate``-th case for a place in the stream."""
        return self.drawn(case_at(seed, index + candidate * _CANDIDATES_APART, self.settings), "generated")

    def of(self, choices: bytes) -> Drawn | None:
        """Return the case of a recipe that may have been mutated; None if the bytes give no case."""
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
    """The user's own case and variations of it. They have no recipes, because the source itself is varied."""

    survey: Survey

    @property
    def name(self) -> str:
        """``from=`` and a hash of the varied source."""
        return f"from={hashlib.sha256(self.survey.source.encode()).hexdigest()[:12]}"

    def at(self, seed: int, index: int, candidate: int = 0) -> Drawn:
        """Return the ``candidate``-th variation for a place in the stream; index 0 is the case itself."""
        from fuzzcompile.variations import vary  # needs torch, which the campaign's own process does without

        if index == 0:
            return Drawn(self.survey.source, "user", ("as_given",))
        varied = vary(self.survey, random.Random(f"fuzzcompile {seed} {index} {candidate}"))
        spec = {"from": self.survey.name, "operators": list(varied.operators)}
        return Drawn(varied.source, "varied", varied.operators, spec=spec, near_misses=varied.operators)
