"""What happens beside a script, and what must not reach it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from watched_scripts import TRAINING, environment, plain, watched

KILLER = """
import glob, os, signal, time
def killed(number):
    # The processes beside the script hold locks; the newest belongs to the last sample.
    for pid in json.load(open("out/job.json"))["processes"]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
import json
"""


@pytest.mark.slow
def test_killed_processes_beside_the_script_cost_their_samples_and_nothing_else(tmp_path):
    path = tmp_path / "script.py"
    source = TRAINING.replace("    loss.backward()", "    if number == 4: killed(number)\n    loss.backward()")
    path.write_text(KILLER + source)
    answer = watched(path, "--every", "3", arguments=("12",))
    assert "weights" in answer.said and answer.summary["steps"] == 12
    judged = [step["step"] for step in answer.steps]
    assert answer.summary["lost"] == {"killed by SIGKILL": 1} and judged == [6, 9, 12], answer.said


@pytest.mark.slow
def test_the_runs_write_no_file_and_draw_nothing_from_the_script(tmp_path):
    path = tmp_path / "script.py"
    acts = """    if number == 5:
        open("log.txt", "a").write("x\\n")
        torch.save(net.state_dict(), "state.pt")
    loss.backward()"""
    path.write_text(TRAINING.replace("    loss.backward()", acts))
    answer = watched(path, "--every", "3", arguments=("7",))
    assert (tmp_path / "log.txt").read_text() == "x\n"
    at_six = next(step for step in answer.steps if step["step"] == 6)
    assert "loss" not in at_six["made"] and any("log.txt" in unseen for unseen in at_six["unseen"])
    (tmp_path / "log.txt").unlink()
    assert plain(path, "7").strip() in answer.said


@pytest.mark.slow
def test_native_code_cannot_write_either(tmp_path):
    source = """
import os, sys, torch
from pathlib import Path
from fuzzcompile.analyses.watch.side_processes import contain, only_writes_below
allowed, refused = Path(sys.argv[1]), Path(sys.argv[2])
pid = os.fork()
if pid == 0:
    contain(set())
    if not only_writes_below(allowed):
        os._exit(9)
    torch._C.PyTorchFileWriter(str(allowed / "a.pt")).write_end_of_file()
    try:
        torch._C.PyTorchFileWriter(str(refused / "b.pt"))
    except RuntimeError:
        os._exit(5)
    os._exit(6)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
"""
    allowed, refused = tmp_path / "allowed", tmp_path / "refused"
    allowed.mkdir(), refused.mkdir()
    command = [sys.executable, "-c", source, str(allowed), str(refused)]
    status = int(subprocess.run(command, env=environment(), capture_output=True, check=True, timeout=100).stdout)
    # A kernel without Landlock says so; the audit hook is all there is then.
    assert status in (5, 9) and not list(refused.iterdir())
    assert status == 9 or (allowed / "a.pt").exists()


@pytest.mark.slow
def test_two_lines_in_a_users_own_code(tmp_path):
    path = tmp_path / "script.py"
    wrapped = """
from fuzzcompile import watch
before = step
step = watch(step, every=3)
assert step is before and list(step.state_dict()) == list(before.state_dict())
step.eval(); assert not net.training
step.train(); assert net.training
optimizer ="""
    path.write_text(TRAINING.replace("\noptimizer =", wrapped))
    said = subprocess.run(
        [sys.executable, str(path), "7"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=200,
    ).stdout  # fmt: skip
    assert "weights" in said
    lines = _settled(tmp_path / "watch" / "steps.jsonl", 2)
    assert [(line["step"], line["unexplained"]) for line in lines] == [(3, False), (6, False)]


def _settled(path, count):
    """The lines of a file once it has ``count``: processes beside a script may outlive it."""
    import time

    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        time.sleep(0.1)
    raise AssertionError(f"{path} has fewer than {count} lines")
