"""Scripts that are run again: by a stand-in for torch, which takes no time to import."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from torch_stubs import BROKEN_ON, add, interpreter

from fuzzcompile.corpus.replay import replay_engine
from fuzzcompile.corpus.replay.environments import Torch, find_torch
from fuzzcompile.corpus.replay.replay_engine import Settings, replay_on, run_script, subjects
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError
from fuzzcompile.run.subprocesses import CommandStopped

FAILS, PASSES = BROKEN_ON.format(versions=["1.0"]), BROKEN_ON.format(versions=[])
ALTERNATES = """
import pathlib
path = pathlib.Path({path!r})
path.write_text(str(number := int(path.read_text() or 0) + 1 if path.exists() else 1))
print("BUG: odd" if number % 2 else "OK: even")
raise SystemExit(number % 2)
"""
HANGS = "import time\nprint('starts', flush=True)\ntime.sleep(60)  # BUG: never said\n"
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)  # BUG: never said\n"
LEAVES = """
import os, pathlib, subprocess, sys
assert not list(pathlib.Path().glob("*.state")) and "PYTHONSTARTUP" not in os.environ
pathlib.Path("some.state").write_text("")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("pid", child.pid)
print("OK: right" if os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] == "0" else "BUG: cached")
"""
NO_GPU = """
import os
print("no CUDA device here: nothing was run" if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else "BUG: sees one")
raise SystemExit(3 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else 1)
"""


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone, or about to be."""
    try:
        psutil.Process(pid).wait(20)
    except psutil.TimeoutExpired:
        return False
    except psutil.NoSuchProcess:
        pass
    return True


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Torch:
    return find_torch(interpreter(tmp_path_factory.mktemp("torch"), "1.0+stub") / "bin" / "python")


def test_results_are_believed_after_three_runs(store: Store, torch: Torch, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", "nowhere")
    scripts = {
        "failing": (FAILS, "miscompile"),
        "fixed": (PASSES, "miscompile"),
        "flaky": (ALTERNATES.format(path=str(tmp_path / "count")), "miscompile"),
        "crash": (CRASHES, "crash"),
        "errored": (CRASHES, "miscompile"),
        "leaves": (LEAVES, "miscompile"),
        "gpu": (NO_GPU, "miscompile"),
    }
    for name, (script, verdict) in scripts.items():
        add(store, f"stage:-:{name}", script, verdict)
    results = {
        result.subject.finding.signature.rpartition(":")[2]: result.replay
        for result in replay_on(torch, subjects(store), Settings(jobs=2, hide_gpus=True))
    }
    assert {name: replay.status for name, replay in results.items()} == {
        "failing": "failing",
        "fixed": "fixed",
        "flaky": "flaky",
        "crash": "failing",
        "errored": "errored",
        "leaves": "fixed",
        "gpu": "not run",
    }
    assert {len(replay.runs) for name, replay in results.items() if name != "gpu"} == {3}
    assert results["flaky"].runs == ["failing", "fixed", "failing"] and "BUG: odd" in results["flaky"].output
    assert results["failing"].torch == "1.0+stub" and results["failing"].output == "BUG: wrong\n"
    assert ends(int(results["leaves"].output.split()[1]))


@pytest.mark.parametrize(("verdict", "status"), [("timeout", "failing"), ("miscompile", "errored")])
def test_a_script_that_hangs_is_ended(store: Store, torch: Torch, verdict: str, status: str):
    add(store, "stage:-:hangs", HANGS, verdict)
    started = time.monotonic()
    [result] = replay_on(torch, subjects(store), Settings(runs=1, timeout=1.0))
    assert result.replay.status == status and time.monotonic() - started < 20
    assert "starts" in result.replay.output and "repro.py" in result.replay.output, "where it hung"


def test_an_interrupt_ends_the_scripts_that_run(torch: Torch):
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    started = time.monotonic()
    with pytest.raises(CommandStopped):
        run_script(torch.python, HANGS, {}, timeout=60, stop=stop)
    assert time.monotonic() - started < 20


def test_paths_of_this_machine_are_not_stored(store: Store, torch: Torch):
    add(store, "stage:-:paths", 'print("BUG: in", __import__("os").getcwd() + "/x.py")\nraise SystemExit(1)\n')
    [result] = replay_on(torch, subjects(store), Settings(runs=1))
    assert result.replay.output == "BUG: in x.py\n" and os.sep not in result.why


def test_findings_are_selected_by_name_and_by_kind(store: Store):
    add(store, "post_grad:a.py:addmm", FAILS)
    add(store, "post_grad:b.py:cat", FAILS, "crash")
    add(store, "joint_graph:a.py:mul", FAILS, "crash")

    def chosen(*selection: str) -> list[str]:
        return [subject.finding.public_id for subject in subjects(store, selection)]

    assert chosen() == ["F1", "F2", "F3"]
    assert chosen("f3", "1") == ["F1", "F3"]
    assert chosen("post_grad") == ["F1", "F2"] and chosen("*a.py*") == ["F1", "F3"]
    assert chosen("severity=error") == ["F2", "F3"] and chosen("stage=joint_graph", "severity=error") == ["F3"]
    assert chosen("status=open", "F2") == ["F2"] and chosen("status=fixed") == []


@pytest.mark.parametrize("name", ["F9", "nope", "*.rs", "severity=bad", "status=closed", "stage=x", "umbrella=x", ""])
def test_a_selection_of_what_is_not_there_is_refused(store: Store, name: str):
    add(store, "post_grad:a.py:addmm", FAILS)
    with pytest.raises(UsageError, match="--select"):
        subjects(store, [name])


def test_what_cannot_be_replayed_says_why(store: Store):
    add(store, "stage:-:none", None)
    add(store, "stage:-:users", "print('hello')\n")
    reasons = [subject.not_replayable or "" for subject in subjects(store)]
    assert "no reproducer" in reasons[0] and "user's own" in reasons[1]


def test_the_parent_imports_no_torch():
    names = sorted(path.stem for path in Path(replay_engine.__file__).parent.glob("*.py"))
    modules = ", ".join(f"fuzzcompile.corpus.replay.{name}" for name in names if name != "__init__")
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert names and subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
