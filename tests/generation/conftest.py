"""Cases that several tests look at, drawn once."""

from __future__ import annotations

import pytest

from fuzzcompile.generation import GeneratedCase, Profile, case_at


@pytest.fixture(scope="session")
def many() -> list[GeneratedCase]:
    """Enough for every idiom and operator to be among them."""
    return [case_at(0, index, Profile()) for index in range(1500)]
