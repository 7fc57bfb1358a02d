"""The pool on Dask workers, from outside: what arrives on the futures, and what is said of the workers."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import sys
import threading
import time

import psutil
import pytest

pytest.importorskip("distributed", reason="Dask is an extra: pip install 'fuzzcompile[cluster]'")

from clustered import EVAL, PATIENCE, PLAIN, threads, until

from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_run import join_workers
from fuzzcompile.fuzz.cluster import cluster_messages, cluster_pool, dask_host
from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.run.pool.worker import (
    WorkerCrashed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerStopped,
    WorkerTimeout,
)


def joined(cluster, **arguments) -> ClusterPool:
    address = ClusterAddress.parse(cluster if isinstance(cluster, str) else cluster.scheduler_address)
    return ClusterPool(address, Conditions(device="cpu"), **{"opens": PLAIN, **arguments})


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Everything that only takes time, shorter."""
    for module, name, seconds in [
        (cluster_pool, "_TICK", 0.1),
        (cluster_pool, "_PULSE", 0.2),
        (cluster_pool, "_ANSWERS_WITHIN", 2.0),
        (cluster_pool, "_GATHERING", 0.6),
    ]:
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture(scope="module")
def cluster():
    with threads() as cluster:
        yield cluster


@pytest.fixture
def workers(cluster):
    with joined(cluster) as workers:
        workers.wait_for_worker(PATIENCE)
        until(lambda: workers.state.slots == 2)
        yield workers


def test_results_and_errors_come_back_with_the_environment_of_their_worker(workers):
    numbers = [workers.schedule(EVAL, (f"{number} * 2",), label=f"judge #{number}") for number in range(20)]
    raises = workers.schedule(EVAL, ("1 / 0",))
    assert [number.result(PATIENCE) for number in numbers] == [number * 2 for number in range(20)]
    assert isinstance(raises.exception(PATIENCE), ZeroDivisionError)
    assert "1 / 0" not in str(raises.exception()) and "Traceback" in str(raises.exception().__cause__)
    assert workers.environment_of(raises)["machine"] == f"{os.getpid():08x}"


def test_what_takes_its_process_down_costs_the_task_and_not_the_dask_worker(workers):
    exits = workers.schedule(EVAL, ("__import__('os')._exit(7)",))
    crashes = workers.schedule(EVAL, ("print('last words', flush=True) or __import__('os').abort()",))
    hangs = workers.schedule(NamedFunction("time:sleep"), (1000,), time_limit=0.5)
    grows = workers.schedule(EVAL, ("[bytes(2**20) or b'x' * 2**20 for _ in range(10**6)]",))
    exited, crashed, hung, grown = (task.exception(PATIENCE) for task in (exits, crashes, hangs, grows))
    assert isinstance(exited, WorkerCrashed) and exited.exit_code == 7
    assert isinstance(crashed, WorkerCrashed) and crashed.exit_code == -signal.SIGABRT
    assert "last words" in crashed.output
    assert isinstance(hung, WorkerTimeout) and hung.seconds == 0.5
    assert isinstance(grown, WorkerOutOfMemory) and grown.seen > grown.limit
    assert workers.schedule(EVAL, ("1 + 1",)).result(PATIENCE) == 2
    assert workers.state.workers == 2 and not [each for each in workers.changes() if each.event == "worker_lost"]


def test_what_a_process_leaves_of_its_task_comes_back_while_it_runs_and_when_it_is_lost(workers):
    leaves = "__import__('fuzzcompile.run.pool.worker', fromlist=['leave']).leave('how far', 'half')"
    heard: dict[str, str] = {}
    lost = workers.schedule(
        EVAL, (f"{leaves} or __import__('time').sleep(1.5) or __import__('os')._exit(1)",), on_left=heard.__setitem__
    )
    until(lambda: heard == {"how far": "half"})
    assert not lost.done()
    assert lost.exception(PATIENCE).left == {"how far": "half"}


def test_a_call_that_cannot_be_pickled_fails_its_future(workers):
    assert workers.schedule(EVAL, (threading.Lock(),)).exception(PATIENCE) is not None


def test_no_more_runs_than_there_are_slots_and_the_next_begins_at_once(workers, tmp_path):
    gate = tmp_path / "open"
    shut = f"any(iter(lambda: __import__('time').sleep(0.01) or __import__('os').path.exists({str(gate)!r}), True))"
    sleeps = [workers.schedule(EVAL, (shut,), label=f"judge #{number}") for number in range(4)]
    until(lambda: workers.state.busy == 2)
    assert sum(sleep.running() for sleep in sleeps) == 2
    assert sorted(state.task for state in workers.workers()) == ["judge #0", "judge #1"]
    assert sleeps[3].cancel()
    gate.touch()
    concurrent.futures.wait(sleeps, PATIENCE)
    assert workers.state.busy == 0 and workers.capacity == 4


def test_the_most_that_the_user_asks_for_is_kept(cluster):
    with joined(cluster, most=1) as workers:
        workers.wait_for_worker(PATIENCE)
        until(lambda: workers.state.slots == 2)
        assert workers.capacity == 1


def test_several_campaigns_share_a_cluster(cluster):
    with joined(cluster) as first, joined(cluster) as second:
        for workers in (first, second):
            workers.wait_for_worker(PATIENCE)
        until(lambda: first.state.slots == second.state.slots == 2)
        tasks = [workers.schedule(EVAL, (f"{number}",)) for workers in (first, second) for number in range(10)]
        assert [task.result(PATIENCE) for task in tasks] == [*range(10), *range(10)]
        first.kill_workers()
        assert second.schedule(EVAL, ("1 + 1",)).result(PATIENCE) == 2


def test_a_lost_worker_blames_no_case_that_waits_there_behind_another_campaign(monkeypatch):
    monkeypatch.setattr(cluster_pool, "_SETTLING", 0.0)
    with threads(1) as cluster, joined(cluster) as first, joined(cluster) as second:
        for workers in (first, second):
            workers.wait_for_worker(PATIENCE)
        running = first.schedule(NamedFunction("time:sleep"), (1000,))
        until(lambda: running.began)
        waiting = second.schedule(EVAL, ("1 + 1",))
        for _ in range(4):
            (member,) = until(lambda: [each for each in list(second._known.values()) if each.running])
            second._loop.call_soon_threadsafe(second._lose, "it is gone", member)
            until(lambda lost=member: any(each is not lost for each in second._members()))
        assert not waiting.done() and not running.done()
        first.kill_workers()
        assert waiting.result(PATIENCE) == 2


def test_killing_it_settles_every_task_and_ends_every_process(cluster):
    before = {child.pid for child in psutil.Process().children()}
    workers = joined(cluster)
    workers.wait_for_worker(PATIENCE)
    until(lambda: workers.state.slots == 2)
    sleeps = [workers.schedule(NamedFunction("time:sleep"), (1000,)) for _ in range(3)]
    until(lambda: workers.state.busy == 2)
    workers.kill_workers()
    assert [type(sleep.exception()) for sleep in sleeps[:2]] == [WorkerStopped] * 2
    assert sleeps[2].cancelled()
    until(lambda: {child.pid for child in psutil.Process().children()} <= before)
    assert isinstance(workers.schedule(EVAL, ("1",)).exception(), WorkerStartFailed)


@pytest.mark.slow
def test_a_worker_that_joins_later_gets_work_and_one_that_leaves_costs_nothing():
    with threads(1) as cluster, joined(cluster) as workers:
        workers.wait_for_worker(PATIENCE)
        cluster.scale(2)
        until(lambda: workers.state.slots == 2)
        sleeps = [workers.schedule(EVAL, (f"__import__('time').sleep(0.7) or {number}",)) for number in range(3)]
        until(lambda: workers.state.busy == 2)
        cluster.scale(1)
        assert [sleep.result(PATIENCE) for sleep in sleeps] == [0, 1, 2]
        told = workers.changes()
        assert [each.event for each in told].count("worker_joined") == 2
        until(lambda: workers.state.slots == 1)


def test_a_task_that_loses_three_dask_workers_is_taken_to_end_them(workers, monkeypatch):
    monkeypatch.setattr(cluster_pool, "_SETTLING", 0.0)
    killing = workers.schedule(NamedFunction("time:sleep"), (1000,))
    other = workers.schedule(NamedFunction("time:sleep"), (0.1,))

    def lose_its_worker() -> bool:
        def lose() -> None:
            for member in list(workers._known.values()):
                if any(task is killing for task in member.running.values()):
                    workers._lose("it is gone", member)

        workers._loop.call_soon_threadsafe(lose)
        return killing.done()

    until(lambda: lose_its_worker() or time.sleep(0.3))
    assert isinstance(killing.exception(), WorkerCrashed) and killing.exception().output.count("tcp://") == 3
    assert other.exception(PATIENCE) is None


@pytest.mark.slow
def test_a_host_that_hears_nothing_of_its_campaign_closes_and_is_opened_again(cluster, monkeypatch):
    monkeypatch.setattr(dask_host, "SILENCE", 1.0)
    monkeypatch.setattr(cluster_pool, "_PULSE", 1000.0)
    with joined(cluster) as workers:
        workers.wait_for_worker(PATIENCE)
        until(lambda: workers.state.slots == 2)
        added = [plugin for worker in cluster.workers.values() for plugin in worker.plugins.values()]
        hosts = [plugin for plugin in added if isinstance(plugin, dask_host.CampaignHost)]
        assert all(host.is_open for host in hosts) and len(hosts) == 2
        until(lambda: not any(host.is_open for host in hosts))
        assert workers.schedule(EVAL, ("1 + 1",)).result(PATIENCE) == 2


@pytest.mark.slow
def test_a_task_that_runs_long_keeps_its_host_open(cluster, monkeypatch):
    monkeypatch.setattr(dask_host, "SILENCE", 1.2)
    monkeypatch.setattr(cluster_pool, "_PULSE", 0.3)
    with joined(cluster) as workers:
        workers.wait_for_worker(PATIENCE)
        assert workers.schedule(EVAL, ("__import__('time').sleep(2.5) or 'done'",)).result(PATIENCE) == "done"


# -- who is refused


def test_a_worker_of_another_fuzzcompile_is_refused_with_a_sentence(cluster, monkeypatch):
    monkeypatch.setattr(cluster_messages, "compute_code_digest", lambda: "0" * 12)
    monkeypatch.setattr(dask_host, "compute_code_digest", lambda: "1" * 12)
    with joined(cluster) as workers, pytest.raises(EnvironmentUnfit, match="install the same there") as refused:
        workers.wait_for_worker()
    assert "tcp://127.0.0.1" in str(refused.value) and "\n" not in str(refused.value)
    assert {each.event for each in workers.changes()} == {"worker_refused"}


def test_a_worker_of_another_torch_is_refused(cluster):
    with (
        joined(cluster, torch="1.0.0") as workers,
        pytest.raises(EnvironmentUnfit, match=r"and the campaign is for torch 1\.0\.0"),
    ):
        workers.wait_for_worker()


def open_never(charter, stack):
    raise EnvironmentUnfit("torch.compile needs a C++ compiler on the CPU: there is none.")


def open_with_plant(charter, stack):
    raise UsageError("The plant raises.")


def test_a_worker_whose_processes_cannot_start_is_refused_with_the_reason(cluster):
    opens = NamedFunction(f"{__name__}:open_never")
    with joined(cluster, opens=opens) as workers, pytest.raises(EnvironmentUnfit, match="needs a C"):
        workers.wait_for_worker()


def test_what_is_wrong_with_the_users_own_files_ends_the_campaign_at_once(cluster):
    opens = NamedFunction(f"{__name__}:open_with_plant")
    with joined(cluster, opens=opens) as workers, pytest.raises(UsageError, match="plant raises"):
        workers.wait_for_worker(PATIENCE)


def test_a_cluster_without_workers_is_told_how_to_get_some():
    with (
        threads(0) as cluster,
        joined(cluster) as workers,
        pytest.raises(EnvironmentUnfit, match="has no workers: start some with `dask worker"),
    ):
        workers.wait_for_worker()


# -- who does not answer


def test_nobody_answers():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    begun = time.monotonic()
    with joined(address) as workers, pytest.raises(EnvironmentUnfit, match="No Dask scheduler answers at") as nobody:
        workers.wait_for_worker()
    assert time.monotonic() - begun < 6 and address in str(nobody.value) and "\n" not in str(nobody.value)


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    address, clock = ClusterAddress.parse("tcp://127.0.0.1:1"), BudgetClock(CampaignBudget(seconds=10))
    with (
        pytest.raises(EnvironmentUnfit, match=r"pip install 'fuzzcompile\[cluster\]'"),
        join_workers(address, Conditions(device="cpu"), None, clock),
    ):
        pass
