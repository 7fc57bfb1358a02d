"""The worker pool, from outside: what arrives on the futures and which processes are left."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fuzzcompile
from fuzzcompile.run.pool.worker import (
    RemoteError,
    WorkerCrashed,
    WorkerFailed,
    WorkerOutOfMemory,
    WorkerStartFailed,
    WorkerStopped,
    WorkerTimeout,
    get_current_device,
    leave,
    retire,
)
from fuzzcompile.run.pool.worker_pool import WorkerPool

PATIENCE = 30  # seconds for anything that should be quick, on a machine that is busy
MIB = 2**20


# Tasks.


def add(left: int, right: int = 0) -> int:
    return left + right


def fail(message: str) -> None:
    raise ValueError(message)


def device_and_pid(wait: float = 0.0) -> tuple[str, int]:
    time.sleep(wait)
    return get_current_device(), os.getpid()


def announce_and_sleep(path: Path, seconds: float = 1000) -> None:
    write_atomically(path, str(os.getpid()))
    time.sleep(seconds)


def announce_and_wait(path: Path) -> None:
    """Run until the test says ``release(path)``."""
    write_atomically(path, str(os.getpid()))
    assert eventually(path.with_suffix(".released").exists)


def release(path: Path) -> None:
    path.with_suffix(".released").touch()


def hang_with_children(path: Path) -> None:
    """Hold the GIL in C for ever, above a child in our group and one in a session of its own."""
    children = [os.getpid()]
    children += [subprocess.Popen(["sleep", "1000"]).pid]
    children += [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid]
    write_atomically(path, json.dumps(children))
    ctypes.PyDLL(None).sleep(1000)


def crash_in_a_temporary_file() -> None:
    path = Path(tempfile.gettempdir(), "vanishing.py")
    path.write_text("def crash():\n    os.abort(  )\n")
    names: dict[str, Any] = {"os": os}
    exec(compile(path.read_text(), str(path), "exec"), names)
    names["crash"]()


def crash_after_forking() -> None:
    """Die while a forked child holds a copy of everything that we have open."""
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    os._exit(7)


def segfault() -> None:
    ctypes.string_at(0)


def grow(bytes_in_all: int) -> None:
    kept = []
    for _ in range(bytes_in_all // (8 * MIB)):
        kept.append(b"x" * (8 * MIB))
        time.sleep(0.02)
    time.sleep(PATIENCE)


_leak: list[bytes] = []


def leak(size: int) -> int:
    _leak.append(b"x" * size)
    return os.getpid()


def chatter_and_die() -> None:
    print("first words")
    os.write(1, b"last words\n")
    os._exit(3)


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_unpicklable() -> None:
    raise Unpicklable(1, 2)


def make_lock() -> object:
    return threading.Lock()


def slow_start(seconds: float) -> None:
    time.sleep(seconds)


def import_this_module() -> None:
    """Have it imported before a time limit counts."""


def refuse_to_start() -> None:
    raise OSError("the moon is in the wrong house")


# Helpers.


def write_atomically(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def eventually(holds: Callable[[], object], within: float = PATIENCE) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def failure_of(future: concurrent.futures.Future[Any]) -> BaseException:
    error = future.exception(PATIENCE)
    assert error is not None
    return error


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1)
    yield pool
    pool.kill_workers()


# What any executor does.


def test_results_arrive_on_their_own_futures(pool: WorkerPool) -> None:
    futures = [pool.submit(add, number, right=1) for number in range(50)]
    assert [future.result(PATIENCE) for future in futures] == list(range(1, 51))


def test_map_keeps_the_order() -> None:
    with WorkerPool(2) as pool:
        assert list(pool.map(add, range(20), range(20), timeout=PATIENCE)) == list(range(0, 40, 2))


def test_an_exception_travels_with_its_traceback(pool: WorkerPool) -> None:
    error = failure_of(pool.submit(fail, "no such luck"))
    assert isinstance(error, ValueError)
    assert str(error) == "no such luck"
    assert "in fail" in str(error.__cause__)


def test_an_exception_that_cannot_travel_is_named(pool: WorkerPool) -> None:
    error = failure_of(pool.submit(raise_unpicklable))
    assert isinstance(error, RemoteError)
    assert error.kind.endswith("Unpicklable")
    assert error.message == "1 and 2"


def test_sys_exit_in_a_task_ends_neither_the_worker_nor_the_parent(pool: WorkerPool) -> None:
    before = pool.submit(os.getpid).result(PATIENCE)
    error = failure_of(pool.submit(sys.exit, 4))
    assert isinstance(error, RemoteError)
    assert error.kind == "SystemExit"
    assert pool.submit(os.getpid).result(PATIENCE) == before


def test_what_cannot_be_pickled_fails_its_future_only(pool: WorkerPool) -> None:
    assert "pickle" in str(failure_of(pool.submit(add, threading.Lock()))).lower()
    assert "pickle" in str(failure_of(pool.submit(make_lock))).lower()
    assert pool.submit(add, 1).result(PATIENCE) == 1


def test_large_arguments_and_results_pass(pool: WorkerPool) -> None:
    block = os.urandom(20 * MIB)
    assert pool.submit(bytes.upper, block).result(PATIENCE) == block.upper()


def test_workers_persist(pool: WorkerPool) -> None:
    assert len({pool.submit(os.getpid).result(PATIENCE) for _ in range(20)}) == 1


def test_a_worker_is_recycled_after_its_number_of_tasks() -> None:
    with WorkerPool(1, max_tasks=2) as pool:
        pids = [pool.submit(os.getpid).result(PATIENCE) for _ in range(6)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_a_task_that_is_run_anew_has_a_worker_that_has_run_none() -> None:
    with WorkerPool(1) as pool:
        pids = [pool.schedule(os.getpid, anew=anew).result(PATIENCE) for anew in (True, False, True, False)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def retired() -> int:
    retire()
    return os.getpid()


def test_a_worker_that_retires_answers_its_task_and_costs_no_other() -> None:
    with WorkerPool(1) as pool:
        futures = [pool.submit(task) for task in (os.getpid, retired, os.getpid, retired, os.getpid)]
        pids = [future.result(PATIENCE) for future in futures]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_a_waiting_task_can_be_cancelled_and_a_running_one_not(pool: WorkerPool, tmp_path: Path) -> None:
    running = pool.submit(announce_and_wait, tmp_path / "pid")
    waiting, last = pool.submit(add, 1), pool.submit(add, 2)
    assert eventually((tmp_path / "pid").exists)
    assert waiting.cancel()
    assert not running.cancel()
    release(tmp_path / "pid")
    assert last.result(PATIENCE) == 2
    futures: list[concurrent.futures.Future[Any]] = [running, waiting, last]
    assert not concurrent.futures.wait(futures, PATIENCE).not_done
    assert waiting.cancelled()


def test_shutdown_finishes_what_was_given_and_refuses_more() -> None:
    pool = WorkerPool(1)
    futures = [pool.submit(add, number) for number in range(5)]
    pool.shutdown()
    assert [future.result(0) for future in futures] == list(range(5))
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(add, 1)


def test_shutdown_can_cancel_what_waits(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    running = pool.submit(announce_and_wait, tmp_path / "pid")
    assert eventually((tmp_path / "pid").exists)
    waiting = [pool.submit(add, number) for number in range(3)]
    threading.Timer(0.2, release, (tmp_path / "pid",)).start()
    pool.shutdown(cancel_futures=True)
    assert running.result(0) is None
    assert all(future.cancelled() for future in waiting)


def test_shutdown_does_not_wait_for_a_worker_that_still_starts() -> None:
    began = time.monotonic()
    WorkerPool(1, initializer=slow_start, initargs=(1000,)).shutdown()
    assert time.monotonic() - began < PATIENCE


def test_no_process_is_left_after_shutdown() -> None:
    before = set(psutil.Process().children())  # of other tests: a pool that they share, Inductor's own workers
    with WorkerPool(2) as pool:
        pool.submit(add, 1).result(PATIENCE)
        eventually(lambda: all(state.ready for state in pool.workers()))
        pids = {state.pid for state in pool.workers() if state.pid}
        started = {child.pid for child in set(psutil.Process().children()) - before}
    assert len(pids) == 2
    assert pids <= started
    assert [pid for pid in started if not gone(pid)] == []


# Limits and losses.


def test_a_task_over_its_time_fails_and_its_worker_is_replaced() -> None:
    with WorkerPool(1, time_limit=0.5) as pool:
        before = pool.submit(os.getpid).result(PATIENCE)
        hung, queued = pool.submit(time.sleep, 1000), pool.submit(os.getpid)
        error = failure_of(hung)
        assert isinstance(error, WorkerTimeout)
        assert error.seconds == 0.5
        assert queued.result(PATIENCE) != before


def test_a_stack_in_a_file_that_goes_with_the_worker_has_its_statements() -> None:
    with WorkerPool(1, initializer=import_this_module) as pool:
        error = failure_of(pool.submit(crash_in_a_temporary_file))
    assert "line 2 in crash\n    os.abort(  )\n" in error.output
    assert "in crash_in_a_temporary_file\n  File" in error.output


def test_a_timeout_says_where_the_task_hung() -> None:
    with WorkerPool(1, time_limit=0.5, initializer=import_this_module) as pool:
        error = failure_of(pool.submit(grow, 0))
    assert isinstance(error, WorkerTimeout)
    assert "in grow" in error.output


def test_a_task_can_have_a_time_limit_of_its_own() -> None:
    with WorkerPool(1, time_limit=0.5) as pool:
        patient = pool.schedule(time.sleep, (0.9,), time_limit=math.inf)
        hasty = pool.schedule(time.sleep, (PATIENCE,), time_limit=0.2)
        assert patient.exception(PATIENCE) is None
        assert isinstance(failure_of(hasty), WorkerTimeout)


def test_the_start_of_a_worker_does_not_count_as_the_tasks_time() -> None:
    with WorkerPool(1, time_limit=0.5, initializer=slow_start, initargs=(1.0,)) as pool:
        assert pool.submit(add, 1).result(PATIENCE) == 1


@pytest.mark.parametrize("status", [0, 3])
def test_a_task_that_exits_has_crashed(pool: WorkerPool, status: int) -> None:
    error = failure_of(pool.submit(os._exit, status))
    assert isinstance(error, WorkerCrashed)
    assert error.exit_code == status
    assert error.signal_name is None
    assert pool.submit(add, 1).result(PATIENCE) == 1


def test_a_segfault_is_named_and_leaves_its_stack(pool: WorkerPool) -> None:
    error = failure_of(pool.submit(segfault))
    assert isinstance(error, WorkerCrashed)
    assert error.signal_name == "SIGSEGV"
    assert "in segfault" in error.output


def test_a_crash_carries_the_last_output_of_its_own_task(pool: WorkerPool) -> None:
    pool.submit(print, "of an earlier task").result(PATIENCE)
    error = failure_of(pool.submit(chatter_and_die))
    assert isinstance(error, WorkerCrashed)
    assert error.output == "first words\nlast words"


def test_a_worker_killed_from_outside_costs_its_task_only(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        killed = pool.submit(announce_and_sleep, tmp_path / "pid")
        assert eventually((tmp_path / "pid").exists)
        others = [pool.submit(add, number) for number in range(10)]
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        error = failure_of(killed)
        assert isinstance(error, WorkerCrashed)
        assert error.signal_name == "SIGKILL"
        assert [future.result(PATIENCE) for future in others] == list(range(10))


def test_an_idle_worker_that_is_killed_costs_no_task(pool: WorkerPool) -> None:
    for _ in range(3):
        os.kill(pool.submit(os.getpid).result(PATIENCE), signal.SIGKILL)
        assert pool.submit(add, 1).result(PATIENCE) == 1


def test_an_idle_worker_that_died_is_replaced_before_it_is_needed(pool: WorkerPool) -> None:
    dead = pool.submit(os.getpid).result(PATIENCE)
    os.kill(dead, signal.SIGKILL)
    assert eventually(lambda: pool.workers()[0].ready and pool.workers()[0].pid != dead)


def test_a_crash_is_seen_although_a_forked_child_lives_on(pool: WorkerPool) -> None:
    error = failure_of(pool.submit(crash_after_forking))
    assert isinstance(error, WorkerCrashed)
    assert error.exit_code == 7


def test_a_task_over_the_memory_limit_fails() -> None:
    limit = 200 * MIB
    with WorkerPool(1, memory_limit=limit) as pool:
        error = failure_of(pool.submit(grow, 4096 * MIB))
        assert isinstance(error, WorkerOutOfMemory)
        assert error.limit == limit < error.seen
        assert pool.submit(add, 1).result(PATIENCE) == 1


def test_a_worker_that_keeps_much_memory_is_replaced_before_the_next_task() -> None:
    with WorkerPool(1, memory_limit=400 * MIB) as pool:
        small = [pool.submit(leak, MIB).result(PATIENCE) for _ in range(2)]
        big = [pool.submit(leak, 250 * MIB).result(PATIENCE) for _ in range(2)]
    assert small[0] == small[1] == big[0] != big[1]


def test_many_losses_in_a_row_leave_the_pool_whole() -> None:
    with WorkerPool(2, time_limit=PATIENCE) as pool:
        futures = [pool.submit(os._exit, 1) if n % 2 else pool.submit(add, n) for n in range(20)]
        failures = [future.exception(PATIENCE) for future in futures]
    assert [isinstance(failure, WorkerCrashed) for failure in failures] == [bool(n % 2) for n in range(20)]


def test_failures_can_be_pickled() -> None:
    for failure in (WorkerTimeout(1.5), WorkerOutOfMemory(1, 2), WorkerCrashed(-11), WorkerStartFailed("so")):
        failure.output = "words"
        copy = pickle.loads(pickle.dumps(failure))
        assert (str(copy), copy.output) == (str(failure), "words")
        assert isinstance(copy, WorkerFailed)


def test_an_initializer_that_fails_breaks_the_pool_with_its_reason() -> None:
    with WorkerPool(1, initializer=refuse_to_start) as pool:
        # the worker may have failed before the first task is given, or after
        with pytest.raises(WorkerStartFailed, match="the moon is in the wrong house"):
            pool.submit(add, 1).result(PATIENCE)
        with pytest.raises(WorkerStartFailed):
            pool.submit(add, 1)


def test_workers_that_die_in_their_initializer_break_the_pool() -> None:
    with (
        WorkerPool(1, initializer=os._exit, initargs=(9,)) as pool,
        pytest.raises(WorkerStartFailed, match="9"),
    ):
        pool.submit(add, 1).result(PATIENCE)


def test_an_initializer_has_a_time_limit() -> None:
    pool = WorkerPool(1, initializer=slow_start, initargs=(1000,), start_limit=0.1)
    with pytest.raises(WorkerStartFailed, match="still running"):
        pool.submit(add, 1).result(PATIENCE)


def test_killing_the_workers_settles_every_future(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    running = pool.submit(hang_with_children, tmp_path / "pids")
    waiting = pool.submit(add, 1)
    assert eventually((tmp_path / "pids").exists)
    began = time.monotonic()
    pool.kill_workers()
    assert time.monotonic() - began < 5
    assert isinstance(running.exception(0), WorkerStopped)
    assert waiting.cancelled()
    assert all(gone(pid) for pid in json.loads((tmp_path / "pids").read_text()))


def test_an_exception_in_the_block_stops_the_pool_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WorkerPool(1) as pool:
        running = pool.submit(announce_and_sleep, tmp_path / "pid")
        assert eventually((tmp_path / "pid").exists)
        raise KeyboardInterrupt
    assert time.monotonic() - began < PATIENCE
    assert isinstance(running.exception(0), WorkerStopped)


# Children.


def test_what_a_worker_started_is_killed_with_it(tmp_path: Path) -> None:
    with WorkerPool(1, time_limit=1.0, initializer=import_this_module) as pool:
        assert isinstance(failure_of(pool.submit(hang_with_children, tmp_path / "pids")), WorkerTimeout)
    pids = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 3
    assert eventually(lambda: all(gone(pid) for pid in pids), within=2)


def test_what_a_worker_started_is_killed_when_the_worker_is_killed_from_outside(tmp_path: Path) -> None:
    with WorkerPool(1) as pool:
        future = pool.submit(hang_with_children, tmp_path / "pids")
        assert eventually((tmp_path / "pids").exists)
        pids = json.loads((tmp_path / "pids").read_text())
        os.kill(pids[0], signal.SIGKILL)
        failure_of(future)
        assert eventually(lambda: all(gone(pid) for pid in pids), within=2)


# What is seen of the workers.


def test_the_state_names_the_running_task(pool: WorkerPool, tmp_path: Path) -> None:
    began = time.monotonic()
    future = pool.schedule(announce_and_wait, (tmp_path / "pid",), label="case 17")
    assert eventually((tmp_path / "pid").exists)
    (state,) = pool.workers()
    assert (state.slot, state.ready, state.task) == (0, True, "case 17")
    assert state.pid == int((tmp_path / "pid").read_text())
    assert state.busy_since is not None
    assert began <= state.busy_since <= time.monotonic()
    release(tmp_path / "pid")
    future.result(PATIENCE)
    (state,) = pool.workers()
    assert (state.task, state.busy_since) == (None, None)


def test_a_task_without_a_label_is_called_by_its_function(pool: WorkerPool, tmp_path: Path) -> None:
    pool.submit(announce_and_wait, tmp_path / "pid")
    assert eventually((tmp_path / "pid").exists)
    assert pool.workers()[0].task == "announce_and_wait"
    release(tmp_path / "pid")


def test_a_worker_is_not_ready_before_its_initializer_is_done() -> None:
    with WorkerPool(1, initializer=slow_start, initargs=(0.3,)) as pool:
        assert not pool.workers()[0].ready
        pool.submit(add, 1).result(PATIENCE)
        assert pool.workers()[0].ready


def test_slots_share_the_devices_out_and_keep_them() -> None:
    with WorkerPool(3, devices=("cuda:0", "cuda:1")) as pool:
        assert [state.device for state in pool.workers()] == ["cuda:0", "cuda:1", "cuda:0"]
        assert eventually(lambda: all(state.ready for state in pool.workers()))
        of_pid = {state.pid: state.device for state in pool.workers()}
        seen = [pool.submit(device_and_pid, 0.1) for _ in range(9)]
        for device, pid in (future.result(PATIENCE) for future in seen):
            assert of_pid[pid] == device


def test_a_replaced_worker_keeps_its_slots_device() -> None:
    with WorkerPool(1, devices=("cuda:3",)) as pool:
        failure_of(pool.submit(os._exit, 1))
        assert pool.submit(get_current_device).result(PATIENCE) == "cuda:3"


def test_the_device_is_the_cpu_unless_said_otherwise(pool: WorkerPool) -> None:
    assert pool.submit(get_current_device).result(PATIENCE) == "cpu"
    assert get_current_device() == "cpu"


def test_a_pool_has_at_least_one_worker() -> None:
    with pytest.raises(ValueError, match="at least one"):
        WorkerPool(0)


# The parent as a process of its own.


def start_script(tmp_path: Path, body: str, **environment: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    here = [str(Path(fuzzcompile.__file__).parents[1]), str(Path(__file__).parent)]
    if extra := environment.pop("PYTHONPATH", None):
        here.append(extra)
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here)} | environment,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


HANGING = """
    from pathlib import Path
    from test_pool import announce_and_sleep, hang_with_children
    from fuzzcompile.run.pool.worker_pool import WorkerPool

    if __name__ == "__main__":
        with WorkerPool(3) as pool:
            hung = pool.submit(hang_with_children, Path("pids"))
            pool.submit(announce_and_sleep, Path("pid"))
            try:
                hung.result()
            except KeyboardInterrupt:
                print("interrupted")
                raise SystemExit(0)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_workers_and_their_children_end_when_the_parent_dies(tmp_path: Path, how: signal.Signals) -> None:
    parent = start_script(tmp_path, HANGING)
    with parent:
        assert eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pid").exists())
        pids = [*json.loads((tmp_path / "pids").read_text()), int((tmp_path / "pid").read_text())]
        pids += [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert not any(gone(pid) for pid in pids)
        parent.send_signal(how)
        parent.wait(PATIENCE)
        assert eventually(lambda: all(gone(pid) for pid in pids), within=2)


def test_ctrl_c_is_the_parents_to_handle(tmp_path: Path) -> None:
    parent = start_script(tmp_path, HANGING)
    with parent:
        assert eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pid").exists())
        os.killpg(parent.pid, signal.SIGINT)
        try:
            stdout, stderr = parent.communicate(timeout=PATIENCE)
        finally:
            parent.kill()
    assert (stdout, stderr, parent.returncode) == ("interrupted\n", "", 0)
    assert all(gone(pid) for pid in json.loads((tmp_path / "pids").read_text()))


def run_script(tmp_path: Path, body: str, **environment: str) -> str:
    with start_script(tmp_path, body, **environment) as process:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert stderr == ""
    return stdout


def test_workers_print_nothing_to_the_parents_streams(tmp_path: Path) -> None:
    stdout = run_script(
        tmp_path,
        """
        import os, sys
        from fuzzcompile.run.pool.worker_pool import WorkerPool

        def chatter():
            print("from python", flush=True)
            print("to stderr", file=sys.stderr, flush=True)
            os.system("echo from a child")

        if __name__ == "__main__":
            with WorkerPool(1) as pool:
                pool.submit(chatter).result()
            print('{"only": "json"}')
        """,
    )
    assert json.loads(stdout) == {"only": "json"}


def test_environment_and_pythonpath_reach_the_workers(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "only_on_pythonpath.py").write_text(
        "import os\ndef read(name):\n    return os.environ.get(name)\n", encoding="utf-8"
    )
    stdout = run_script(
        tmp_path,
        """
        import os
        import only_on_pythonpath
        from fuzzcompile.run.pool.worker_pool import WorkerPool

        if __name__ == "__main__":
            os.environ["SET_BY_THE_PARENT"] = "here"
            with WorkerPool(1) as pool:
                print(pool.submit(only_on_pythonpath.read, "SET_BY_THE_PARENT").result())
                print(pool.submit(only_on_pythonpath.read, "SET_BY_THE_SHELL").result())
        """,
        PYTHONPATH=str(folder),
        SET_BY_THE_SHELL="there",
    )
    assert stdout.split() == ["here", "there"]


def test_a_script_without_a_main_guard_starts_no_pools_in_its_workers(tmp_path: Path) -> None:
    stdout = run_script(
        tmp_path,
        """
        from fuzzcompile.run.pool.worker_pool import WorkerPool

        def task():
            return 1

        with WorkerPool(1) as pool:
            print(pool.submit(abs, -5).result())
            print(pool.submit(task).exception())
        """,
    )
    assert stdout.splitlines()[0] == "5"
    assert "__main__" in stdout.splitlines()[1]


def test_the_interpreter_can_end_without_a_shutdown(tmp_path: Path) -> None:
    stdout = run_script(
        tmp_path,
        """
        import time
        from fuzzcompile.run.pool.worker_pool import WorkerPool

        if __name__ == "__main__":
            pool = WorkerPool(2)
            pool.submit(time.sleep, 1000)
            print(pool.submit(abs, -5).result())
        """,
    )
    assert stdout == "5\n"


def test_the_pool_does_not_import_torch() -> None:
    code = "import sys, fuzzcompile.run.pool.worker_pool; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(fuzzcompile.__file__).parents[1]).returncode == 0


def leave_and_end(first: str, again: str) -> None:
    leave("far", first)
    leave("near", "x" * 100_000)
    leave("far", again)
    if os.fork() == 0:  # what a child leaves is not its parent's
        leave("far", "child")
        os._exit(0)
    os.wait()
    os._exit(0)


def test_what_a_lost_worker_has_left_is_told_and_belongs_to_its_task():
    seen: list[str] = []
    with WorkerPool(1) as pool:
        lost = pool.schedule(leave_and_end, ("a", "b"), on_left=lambda name, text: seen.append(name))
        failure = lost.exception(PATIENCE)
        assert isinstance(failure, WorkerCrashed)
        assert failure.left == {"far": "b", "near": "x" * 100_000} and seen == ["far", "near", "far"]
        assert pickle.loads(pickle.dumps(failure)).left == failure.left
        next_one = pool.submit(os._exit, 1).exception(PATIENCE)
        assert isinstance(next_one, WorkerCrashed) and next_one.left == {}


NICE = """
import os
from pathlib import Path
from fuzzcompile.run.pool.reaper import Reaper
from fuzzcompile.run.pool.worker_process import WorkerProcess

os.nice(7)
worker = WorkerProcess(Reaper(), {})
print(Path(f"/proc/{worker.pid}/autogroup").read_text())
worker.kill()
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not weigh sessions")
def test_a_worker_is_as_nice_as_who_has_started_it():
    """A worker leads a session of its own, which the kernel weighs against all others."""
    said = subprocess.run([sys.executable, "-c", NICE], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.strip().endswith("nice 7")
