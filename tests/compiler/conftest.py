"""Watched compiles that several tests look at."""

from __future__ import annotations

import pytest
import watching
from planting import PLANTS, Plant


@pytest.fixture(scope="session", params=PLANTS.values(), ids=str)
def plant(request: pytest.FixtureRequest) -> Plant:
    """One wrong rewrite of each kind."""
    return request.param


@pytest.fixture(scope="session")
def planted(plant: Plant) -> watching.Watched:
    """The plant's program, compiled with the plant."""
    return watching.watch_plant(plant)


@pytest.fixture(scope="session")
def vetoed(plant: Plant) -> watching.Watched:
    """The same with the wrong rewrite vetoed by name."""
    return watching.watch_plant(plant, vetoes=plant.vetoes)
