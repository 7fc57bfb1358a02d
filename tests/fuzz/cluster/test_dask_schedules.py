"""Tries to let Dask place the tasks of a campaign, and where each fails: why our dispatcher pins them.

Each test states what Dask does today. One that fails says that Dask has learnt it, and that the dispatcher's part in it
can go.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clustered import PATIENCE, until

distributed = pytest.importorskip("distributed", reason="Dask is an extra: pip install 'fuzzcompile[cluster]'")


@contextmanager
def scheduled(workers: int, **settings: Any) -> Iterator[Any]:
    """A client of so many Dask workers with one thread each."""
    resources, processes = settings.pop("resources", None), settings.pop("processes", True)
    import dask

    with (
        dask.config.set({f"distributed.scheduler.{name}": value for name, value in settings.items()}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=processes,
            resources=resources,
            dashboard_address=None,
            silence_logs=60,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def states(dask_scheduler: Any) -> list[str]:
    return [task.state for task in dask_scheduler.tasks.values()]


async def give_resource(dask_worker: Any) -> None:
    await dask_worker.set_resources(campaign=1)


def test_a_resource_that_a_worker_gets_later_wakes_no_waiting_task():
    """A campaign opens its processes on a worker first; only then may the worker have the campaign's resource."""
    with scheduled(1, processes=False) as client:
        waiting = client.submit(int, resources={"campaign": 1}, pure=False)
        until(lambda: client.run_on_scheduler(states) == ["no-worker"])
        client.run(give_resource)
        time.sleep(1.0)
        assert client.run_on_scheduler(states) == ["no-worker"]
        assert client.submit(int, resources={"campaign": 1}, pure=False).result(PATIENCE) == 0, "a new one runs"
        assert not waiting.done()


def begin(path: str) -> None:
    Path(path).touch()
    time.sleep(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("resources", [None, {"fuzzcompile": 1}], ids=["plain", "resource since the start"])
def test_tasks_that_only_wait_are_lost_with_the_worker_that_they_wait_on(tmp_path, resources):
    """None of them waits at the scheduler, whatever `worker-saturation` says; each loss counts against all."""
    settings = {"allowed-failures": 0, "worker-saturation": 1.0}
    with scheduled(1, resources=resources, **settings) as client:
        (pid,) = client.run(os.getpid).values()
        paths = [tmp_path / f"began {number}" for number in range(3)]
        present = list(client.scheduler_info()["workers"])
        pinned = {"workers": present} if resources is None else {"resources": resources}
        tasks = [client.submit(begin, str(path), pure=False, **pinned) for path in paths]
        until(lambda: any(path.exists() for path in paths))
        assert client.run_on_scheduler(states) == ["processing"] * 3
        os.kill(pid, signal.SIGKILL)
        errors = [task.exception(PATIENCE) for task in tasks]
        assert sum(path.exists() for path in paths) == 1, "one had begun"
        assert [type(error).__name__ for error in errors] == ["KilledWorker"] * 3


def run_unless_unfit(unfit: str) -> str:
    worker = distributed.get_worker()
    worker.tries = getattr(worker, "tries", 0) + 1
    if worker.address == unfit:
        raise distributed.Reschedule
    time.sleep(0.5)
    return str(worker.address)


def count_tries(dask_worker: Any) -> int:
    return getattr(dask_worker, "tries", 0)


@pytest.mark.slow
def test_what_an_unfit_worker_hands_back_comes_back_to_it_again_and_again():
    """The unfit worker is idle, so that Dask prefers it: a refused machine would be busy with refusing."""
    with scheduled(2) as client:
        unfit, fit = client.scheduler_info()["workers"]
        tasks = [client.submit(run_unless_unfit, unfit, pure=False) for _ in range(3)]
        assert [task.result(PATIENCE) for task in tasks] == [fit] * 3
        assert client.run(count_tries)[unfit] > 20
