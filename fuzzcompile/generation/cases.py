"""Cases from bytes: a case keeps the choices that Hypothesis read, so that it can be drawn again."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings

from fuzzcompile.generation.profile import Profile
from fuzzcompile.generation.rendering import render
from fuzzcompile.generation.spec import CaseSpec
from fuzzcompile.generation.strategy import case_strategy

# Several times as many as the longest case reads.
_BUFFER_BYTES = 4096


@dataclass(frozen=True)
class GeneratedCase:
    """A spec, its source, and the bytes it was drawn from.

    ``choices`` replay under the same profile and Hypothesis version; they are empty for a case that
    was shrunk, whose spec is all there is.
    """

    spec: CaseSpec
    source: str
    choices: bytes = b""

    @classmethod
    def of(cls, spec: CaseSpec, choices: bytes = b"") -> GeneratedCase:
        """Render a spec."""
        return cls(spec, render(spec), choices)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the idioms, near misses and choices that made it (see `fuzzcompile.generation.names`)."""
        return self.spec.features

    @cached_property
    def sha256(self) -> str:
        """Identity of the case: the hash of its source."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def case_at(seed: int, index: int, profile: Profile) -> GeneratedCase:
    """The ``index``-th case of a campaign: the same for the same arguments, on any machine."""
    for attempt in count():
        buffer = random.Random(f"fuzzcompile {seed} {index} {attempt}").randbytes(_BUFFER_BYTES)
        case = _drawn(buffer, profile)
        if case is not None:
            return case
    raise AssertionError("unreachable")


def from_choices(choices: bytes, profile: Profile) -> GeneratedCase:
    """The case that these bytes spell; where they end early, the simplest choices follow.

    Raises:
        ValueError: Hypothesis rejects the bytes under this profile.
    """
    case = _drawn(choices + bytes(_BUFFER_BYTES), profile)
    if case is None:
        raise ValueError("Hypothesis rejects these choices")
    return case


def _drawn(buffer: bytes, profile: Profile) -> GeneratedCase | None:
    seen, fuzz = _reader(profile)
    seen.clear()
    choices = fuzz(buffer)
    return None if choices is None else GeneratedCase.of(seen[0], choices)


@lru_cache(maxsize=64)
def _reader(profile: Profile) -> tuple[list[CaseSpec], Callable[[bytes], bytes | None]]:
    """A list, and a function that draws a spec from bytes and appends it to the list."""
    seen: list[CaseSpec] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(case_strategy(profile))
    def read(spec: CaseSpec) -> None:
        seen.append(spec)

    fuzzed: Any = read  # ``given`` does not type what it adds
    return seen, fuzzed.hypothesis.fuzz_one_input
