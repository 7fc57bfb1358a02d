"""Cases that several tests look at, drawn once."""

from __future__ import annotations

import pytest

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile


@pytest.fixture(scope="session")
def many() -> list[GeneratedCase]:
    """Enough for every idiom and operator to be among them."""
    return [draw_case_at(0, index, Profile()) for index in range(2200)]
