"""``fuzzcompile watch`` on scripts, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from watched_scripts import FLIPPING, TRAINING, environment, plain, watched


@pytest.fixture
def script(tmp_path):
    def write(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return path

    return write


@pytest.mark.slow
def test_a_sound_script_computes_what_it_computes_alone_and_every_nth_step_is_judged(script):
    path = script(TRAINING)
    answer = watched(path, "--every", "4", arguments=("13",))
    assert (answer.status, [step["step"] for step in answer.steps]) == (0, [4, 8, 12]), answer.said
    assert {step["verdict"] for step in answer.steps} <= {"equal", "rounding"}
    assert set(answer.steps[0]["made"]) == {"outputs", "loss", "gradients", "gradient_norm", "buffers", "parameters"}
    assert (answer.summary["steps"], answer.summary["skipped"], answer.summary["script_status"]) == (13, {}, 0)
    assert plain(path, "13").strip() in answer.said
    lines = (path.parent / "out" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 8, 12]


@pytest.mark.slow
def test_the_script_ends_at_the_first_wrong_sampled_step_which_becomes_a_case(script):
    path = script(FLIPPING)
    answer = watched(path, "--every", "5", "--stop-at", "first", "--html", str(path.parent / "page.html"))
    assert (answer.status, answer.summary["unexplained"], answer.summary["steps"]) == (1, [15], 15), answer.said
    wrong = answer.steps[-1]
    assert wrong["verdict"] == "wrong_gradient" and wrong["made"]["gradients"] > 1e-3
    assert wrong["made"]["outputs"] < 1e-6
    folder = path.parent / "out" / "step_15"
    assert {file.name for file in folder.iterdir()} == {"case.py", "case.safetensors"}
    # The backend of the script is at fault, not Inductor, which the case is compiled with.
    assert answer.summary["alone"] is False
    assert "step 15 is wrong" in (path.parent / "page.html").read_text()


@pytest.mark.slow
def test_a_script_that_fails_by_itself_ends_with_its_own_traceback_and_status(script):
    path = script(TRAINING + "raise SystemExit(7)\n")
    answer = watched(path, "--every", "2", arguments=("3",))
    assert (answer.status, answer.summary["script_status"]) == (3, 7)
    assert "exit status 7" in answer.said and "Traceback" not in answer.said


# It says that it is a method of a module, and has no name.
NAMELESS = """
class Nameless:
    __self__ = net

    def __call__(self, x):
        return net(x)

torch.compile(Nameless(), backend="eager")(torch.ones(6, 8))
print("called")
"""


@pytest.mark.slow
def test_a_callable_that_cannot_be_watched_is_told_and_the_script_gets_it_all_the_same(script):
    answer = watched(script(TRAINING + NAMELESS), "--every", "2", arguments=("4",))
    [reason] = answer.summary["skipped"]
    assert reason.startswith("of a callable that cannot be watched (AttributeError: ") and "__name__" in reason
    assert (answer.status, [step["step"] for step in answer.steps]) == (0, [2, 4]) and "called" in answer.said
    assert reason in answer.said


@pytest.mark.slow
def test_nothing_sampled_is_not_success(script):
    answer = watched(script(TRAINING), "--every", "50", arguments=("3",))
    assert answer.status == 3 and answer.steps == [] and "--every" in answer.said


@pytest.mark.slow
def test_steps_ends_the_script_after_that_many(script):
    answer = watched(script(TRAINING), "--every", "2", "--steps", "5", arguments=("100000",))
    assert (answer.status, answer.summary["steps"]) == (0, 5)
    assert "weights" not in answer.said


@pytest.mark.slow
def test_an_interrupt_ends_script_and_watch_with_the_summary_so_far(script):
    path = script(TRAINING)
    command = [sys.executable, "-m", "fuzzcompile", "watch", str(path), "--every", "3", "--out", "out", "--json"]
    process = subprocess.Popen(
        [*command, "--", "100000000"],
        env=environment(), cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    steps = path.parent / "out" / "steps.jsonl"
    deadline = time.monotonic() + 120
    while not steps.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    summary = json.loads(out.decode().splitlines()[-1])
    assert summary["interrupted"] and summary["judged"] >= 1 and process.returncode == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [("def make():\n    return abs, (1,)\n", "case file"), ("import (\n", "not valid Python")],
)
def test_what_cannot_be_watched_is_refused_before_it_runs(script, source, said):
    answer = watched(script(source))
    assert answer.status == 2 and said in answer.said
