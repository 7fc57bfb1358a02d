"""Worker pools and a plant that the tests of the commands share: a worker takes seconds to start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from calling import PLANT

from fuzzcompile.diagnosis.worker import file_triage
from fuzzcompile.run.pool.worker_pool import WorkerPool

_open_pool = file_triage.open_pool


@pytest.fixture(scope="session")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that plants a wrong rewrite."""
    path = tmp_path_factory.mktemp("plant") / "plant.py"
    path.write_text(PLANT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def kept_pools() -> Iterator[Callable[..., contextlib.AbstractContextManager[WorkerPool]]]:
    """Like ``open_pool``, with one pool for all calls that ask for the same, closed at the end of the session."""
    pools: dict[str, WorkerPool] = {}

    @contextlib.contextmanager
    def kept(*arguments: object, **options: object) -> Iterator[WorkerPool]:
        options.pop("listener", None)  # of the first call alone
        key = repr((arguments, sorted(options.items())))
        if key not in pools:
            pools[key] = _open_pool(*arguments, **options)
        try:
            yield pools[key]
        except BaseException:  # whatever ends the block may leave tasks in the pool
            pools.pop(key).kill_workers()
            raise

    yield kept
    for pool in pools.values():
        pool.kill_workers()


@pytest.fixture
def shared_workers(kept_pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are judged by workers that earlier tests have used; for tests that are not about workers."""
    monkeypatch.setattr(file_triage, "open_pool", kept_pools)
