"""Schedulers, Dask workers, nannies and drivers that die or stop: every task is settled once, and nothing is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections import Counter

import psutil
import pytest

pytest.importorskip("distributed", reason="Dask is an extra: pip install 'fuzzcompile[cluster]'")

from clustered import EVAL, PATIENCE, PLAIN, Processes, until

from fuzzcompile.fuzz.cluster import cluster_pool
from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.pool.worker import WorkerStartFailed

pytestmark = pytest.mark.slow

TASKS = 24


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def joined(processes: Processes, slots: int, address: str = "") -> ClusterPool:
    pool = ClusterPool(ClusterAddress.parse(address or processes.address), Conditions(device="cpu"), opens=PLAIN)
    pool.wait_for_worker(PATIENCE)
    until(lambda: pool.state.slots == slots)
    return pool


def numbers(pool: ClusterPool, seconds: float = 0.5) -> list:
    return [
        pool.schedule(EVAL, (f"__import__('time').sleep({seconds}) or {number}",), label=f"judge #{number}")
        for number in range(TASKS)
    ]


def results(futures: list) -> list[int]:
    return [future.result(2 * PATIENCE) for future in futures]


def kinds(pool: ClusterPool) -> Counter:
    return Counter(change.event for change in pool.changes())


def below(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def living(started: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_dask_worker_that_is_killed_costs_no_task(processes):
    processes.scheduler()
    workers = [processes.worker() for _ in range(3)]
    with joined(processes, 3) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        started = [child for worker in workers for child in below(worker)]
        assert len(started) >= 3
        workers[0].kill()
        until(lambda: sum(future.done() for future in futures) >= 8)
        workers[1].kill()
        assert results(futures) == list(range(TASKS))
        assert kinds(pool)["worker_lost"] == 2
    until(lambda: not living(started))


def test_a_nanny_starts_its_worker_anew_and_is_missed_by_nobody(processes):
    processes.scheduler()
    nannies = [processes.worker("--nanny") for _ in range(2)]
    with joined(processes, 2) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        workers = [child for child in below(nannies[0]) if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 1
        workers[0].kill()
        until(lambda: sum(future.done() for future in futures) >= 8)
        nannies[1].kill()
        assert results(futures) == list(range(TASKS))
        until(lambda: pool.state.slots == 1)
        told = kinds(pool)
        assert told["worker_lost"] == 2 and told["worker_joined"] == 3


def test_a_worker_that_stops_longer_than_the_scheduler_waits_is_lost_and_may_come_back(processes):
    processes.scheduler(DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="4s")
    workers = [processes.worker() for _ in range(2)]
    with joined(processes, 2) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        workers[0].send_signal(signal.SIGSTOP)
        assert results(futures) == list(range(TASKS))
        until(lambda: pool.state.slots == 1)
        workers[0].send_signal(signal.SIGCONT)
        assert results(numbers(pool, 0.1)) == list(range(TASKS))
        assert kinds(pool)["worker_lost"] == 1


def test_a_worker_that_does_not_answer_is_lost_before_the_scheduler_says_so(processes, monkeypatch):
    monkeypatch.setattr(cluster_pool, "_PULSE", 1.0)
    monkeypatch.setattr(cluster_pool, "_ANSWER_LIMIT", 4.0)
    processes.scheduler()
    workers = [processes.worker() for _ in range(2)]
    with joined(processes, 2) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        workers[0].send_signal(signal.SIGSTOP)
        assert results(futures) == list(range(TASKS))
        assert pool.state.workers == 1
        workers[0].send_signal(signal.SIGCONT)
        until(lambda: pool.state.workers == 2)


@pytest.mark.parametrize("nanny", [(), ("--nanny",)])
def test_a_scheduler_that_comes_back_finds_the_campaign_waiting(processes, nanny):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scheduler = processes.scheduler(port=port)
    worker = processes.worker(*nanny)
    with joined(processes, 1) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        scheduler.kill()
        scheduler.wait()
        until(lambda: any(change.event == "scheduler_lost" for change in pool.changes()))
        worker.wait(PATIENCE)  # Dask's workers end with their scheduler, nannies included
        processes.scheduler(port=port)
        processes.worker(*nanny)
        assert results(futures) == list(range(TASKS))
        assert kinds(pool)["scheduler_back"] == 1


def test_a_scheduler_file_leads_to_the_new_scheduler(processes):
    scheduler = processes.scheduler()
    processes.worker()
    with joined(processes, 1, str(processes.file)) as pool:
        futures = numbers(pool)
        until(lambda: sum(future.done() for future in futures) >= 2)
        scheduler.kill()
        scheduler.wait()
        processes.scheduler()
        processes.worker()
        assert results(futures) == list(range(TASKS))


def test_a_scheduler_that_does_not_come_back_ends_the_campaign_with_a_sentence(processes, monkeypatch):
    monkeypatch.setattr(cluster_pool, "_PATIENCE", 3.0)
    scheduler = processes.scheduler()
    processes.worker()
    with joined(processes, 1) as pool:
        futures = numbers(pool, 5)
        scheduler.kill()
        failed = futures[0].exception(PATIENCE)
        assert isinstance(failed, WorkerStartFailed) and isinstance(failed.__cause__, EnvironmentUnfit)
        assert "did not come back within 3 s" in str(failed.__cause__) and "resumes" in str(failed.__cause__)
        assert all(future.done() for future in futures)


def test_what_runs_for_a_driver_that_is_killed_ends_soon(processes, tmp_path):
    processes.scheduler()
    worker = processes.worker()
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, time\n"
        "from clustered import EVAL, PLAIN\n"
        "from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress\n"
        "from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool\n"
        "from fuzzcompile.model.conditions import Conditions\n"
        "if __name__ == '__main__':\n"
        "    pool = ClusterPool(ClusterAddress.parse(sys.argv[1]), Conditions(device='cpu'), opens=PLAIN)\n"
        "    pool.wait_for_worker()\n"
        "    pool.schedule(EVAL, ('__import__(\"time\").sleep(1000)',))\n"
        "    time.sleep(1000)\n"
    )
    driver = processes.run(script, processes.address)
    until(lambda: [child for child in below(worker) if "fuzzcompile.run.pool.worker" in " ".join(child.cmdline())])
    driver.kill()
    until(lambda: not below(worker), 60)
    assert worker.poll() is None


def test_a_worker_without_fuzzcompile_or_with_an_older_one_is_refused(processes, tmp_path):
    none, older = tmp_path / "none" / "fuzzcompile", tmp_path / "older" / "fuzzcompile"
    for package in (none, older):
        package.mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'fuzzcompile'\", name='fuzzcompile')"
    (none / "__init__.py").write_text(missing)
    (older / "__init__.py").write_text("__version__ = '0.0.1'")
    processes.scheduler(PYTHONPATH=str(none.parent))  # the scheduler itself needs none
    processes.worker()
    processes.worker("--name", "without", PYTHONPATH=str(none.parent))
    processes.worker("--name", "older", PYTHONPATH=str(older.parent))
    with joined(processes, 1) as pool:
        assert results(numbers(pool, 0.0)) == list(range(TASKS))
        told: list = []
        until(
            lambda: (
                told.extend(pool.changes()) or sum(each.refused is not None for each in list(pool._known.values())) == 2
            )
        )
        told += pool.changes()
        why = sorted(change.fields["why"] for change in told if change.event == "worker_refused")
        assert why == ["its fuzzcompile is older", "no fuzzcompile is installed there"]


def test_a_newcomer_gets_work_in_the_middle_of_a_campaign(processes):
    processes.scheduler()
    processes.worker()
    with joined(processes, 1) as pool:
        futures = numbers(pool)
        processes.worker()
        assert results(futures) == list(range(TASKS))
        assert len({pool.environment_of(future)["machine"] for future in futures}) == 2


def test_workers_of_this_machine_end_with_their_driver(tmp_path):
    driver = subprocess.Popen(
        [sys.executable, "-m", "fuzzcompile", "run", "--cluster", "local:2", "--budget", "10m", "--device", "cpu"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stderr is not None
    until(lambda: " joins: " in driver.stderr.readline())
    children = below(driver)
    assert len(children) > 4
    driver.kill()
    until(lambda: not living(children))
