"""A campaign survives what a cluster and a database go through in a bad week, in minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")

from chaos import chaos
from postgres_server import lacking


@pytest.mark.slow
@pytest.mark.skipif(lacking() is not None, reason=lacking() or "")
def test_a_hundred_blows_lose_nothing_and_store_nothing_twice(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, events=100, gap=3.0, seed=1)
    assert outcome.wrong == []
    assert outcome.blows.total() == 100 and len(outcome.blows) == 11, "everything was killed, stopped and cut off"
    assert outcome.announced > 100 and outcome.stored >= outcome.announced
