from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzcompile.corpus.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    with Store.open(tmp_path / "corpus.db") as opened:
        yield opened
