"""Scripts that lose one of the processes they run in, given to a real command: what it says, and what it leaves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MARK = "LOST_RANKS_OF"  # a variable of the environment of all processes that a command here starts
SCRIPT = """
import os, signal, time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
rank = dist.get_rank()
{before}

@torch.compile
def add_up(x):
{within}
    return funcol.all_reduce(x.sin(), "sum", dist.group.WORLD) + 1

add_up(torch.ones(8))
"""


@dataclass(frozen=True)
class Lost:
    """What a script does, before the call or within it, and what must come of it within so many seconds."""

    before: str = ""
    within: str = "    pass"
    status: int = 3
    says: tuple[str, ...] = ()
    timeout: int = 100
    seconds: float = 100.0


SCRIPTS = {
    "killed": Lost("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", says=("Rank 1", "SIGKILL")),
    "first killed": Lost("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)", says=("SIGKILL",)),
    "raises": Lost("if rank == 1: raise ValueError('no such shard')", status=2, says=("Rank 1", "no such shard")),
    "both raise": Lost("raise ValueError('no such shard')", status=2, says=("no such shard",)),
    "exits": Lost("if rank == 1: raise SystemExit(0)", status=2, says=("Rank 1",)),
    "never comes": Lost("if rank == 1: time.sleep(1000)", says=("Rank 1 never reached",), timeout=80),
    "calls more": Lost(
        within="    if rank == 1: x = funcol.all_reduce(x, 'sum', dist.group.WORLD) + 0",
        says=("Rank 1 waits",),
        timeout=80,
        seconds=110.0,
    ),
    "calls fewer": Lost(within="    if rank == 1: return x.sin()", says=("Rank 0 waits",), timeout=80, seconds=110.0),
    "killed while it is compiled": Lost(
        within="    if rank == 1 and torch.compiler.is_compiling(): os.kill(os.getpid(), signal.SIGKILL)",
        says=("Rank 1",),
    ),
}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a command, by which the processes that it leaves are found."""
    mark = str(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUZZCOMPILE_")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    yield {**kept, "PYTHONPATH": path, MARK: mark}
    left = _list_processes(mark)
    for process in left:
        process.kill()
    assert not left, "processes that a command has left"


@pytest.mark.parametrize("lost", SCRIPTS.values(), ids=SCRIPTS)
def test_a_lost_process_ends_the_command_with_one_sentence(
    lost: Lost, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(before=lost.before, within=lost.within), encoding="utf-8")
    started = time.monotonic()
    answer = _triage(tmp_path, environment, "--timeout", str(lost.timeout))
    said = answer.stdout + answer.stderr
    assert time.monotonic() - started < lost.seconds, said
    assert answer.returncode == lost.status, said
    assert "Traceback" not in said
    assert all(part in said for part in lost.says), said


def test_a_port_that_is_in_use_does_not_matter(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(before="", within="    pass"), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = _triage(tmp_path, {**environment, "MASTER_PORT": str(taken.getsockname()[1])})
    assert answer.returncode == 0, answer.stdout + answer.stderr


SLOW_ONCE = """
import os, time
from torch._inductor.graph import GraphLowering

right = GraphLowering.run

def run(self, *args):
    if os.environ.get("RANK") == "1" and not os.path.exists({mark!r}):
        open({mark!r}, "w").close()
        time.sleep({seconds})
    return right(self, *args)

GraphLowering.run = run
"""


def test_a_process_that_is_slow_once_is_no_bug(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(before="", within="    pass"), encoding="utf-8")
    mark, seconds = tmp_path / "was_slow", 48  # collectives wait for half of the time
    (tmp_path / "plant.py").write_text(SLOW_ONCE.format(mark=str(mark), seconds=seconds), encoding="utf-8")
    answer = _triage(tmp_path, environment, "--timeout", "90", "--plant", "plant.py")
    assert mark.exists()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "judged twice" in answer.stdout


def _triage(folder: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzzcompile", "triage", "script.py", "--nproc", "2", *options],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _list_processes(mark: str) -> list[psutil.Process]:
    """The processes that live on a moment after their command has ended."""
    ends = time.monotonic() + 5.0
    while (left := [process for process in psutil.process_iter() if _is_marked(process, mark)]) and (
        time.monotonic() < ends
    ):
        time.sleep(0.2)
    return left


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
