import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzcompile.corpus import Store


@pytest.fixture(autouse=True)
def no_corpus_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that holds nothing: copying its file is faster than making the schema again."""
    path = tmp_path_factory.mktemp("empty") / "corpus.db"
    Store.open(path).close()
    return path


@pytest.fixture
def store(tmp_path: Path, empty: Path) -> Iterator[Store]:
    with Store.open(shutil.copy(empty, tmp_path / "corpus.db")) as opened:
        yield opened
