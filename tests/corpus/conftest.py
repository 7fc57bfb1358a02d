from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzcompile.corpus import Store


@pytest.fixture(autouse=True)
def no_corpus_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "corpus.db") as opened:
        yield opened
