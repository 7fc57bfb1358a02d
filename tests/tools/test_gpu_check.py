"""The check for GPU machines, as far as it can be tried without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzcompile.corpus.store import Store

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "tools" / "gpu_check.sh"
NUMBERS = {
    "environment": {"torch": "2.13.0", "numerics": {"float32_matmul": "highest", "cudnn_tf32": False}},
    "campaign": {
        "cases": 40,
        "seconds": 240,
        "cases_per_minute": 10.0,
        "verdicts": {"equal": 30, "rounding": 9, "miscompile": 1},
        "findings": [
            {"finding": "F1", "verdict": "miscompile", "culprit": "_sfdp_pattern_28", "necessary": True, "hits": 1}
        ],
    },
    "compile": {
        "case": "attention_float16",
        "device": "cuda:0",
        "runs": 5,
        "eager_seconds_median": 0.001,
        "compile_seconds_median": 0.25,
        "compile_seconds_first": 2.0,
        "replay_seconds_median": 0.05,
        "replays": 8,
    },
}
TRIAGED = [
    {"case": "a", "verdict": "miscompile", "signature": "joint_graph:x", "cost": {"seconds": 2.0, "compiles": 4}},
    {"case": "b", "verdict": None, "error": "b.py defines no make()."},
]


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where torch sees no GPU."""
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_without_a_gpu_it_says_so_and_exits_with_3(tmp_path):
    (tmp_path / "cases").mkdir()
    done = check(tmp_path, "out", "cases")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "gpu_check: this machine has no CUDA GPU that torch can use; run it on one that has.\n"
    assert not (tmp_path / "out" / "summary.md").exists()


@pytest.mark.parametrize(
    "arguments", [(), ("a", "b", "c"), ("out", "no_such_folder"), ("out", "--findings", "none.db"), ("--findings", "x")]
)
def test_wrong_usage_exits_with_2_in_one_line(arguments, tmp_path):
    done = check(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []


def test_the_limits_of_the_steps_add_up_to_less_than_ten_minutes():
    text = SCRIPT.read_text()
    fixed = [int(seconds) for seconds in re.findall(r"^\s*step \w+ (\d+) ", text, re.MULTILINE)]
    plain = [int(seconds) for seconds in re.findall(r"timeout --kill-after=2 (\d+) ", text)]
    (until,) = [int(seconds) for seconds in re.findall(r"step triage \$\(\((\d+) - SECONDS\)\)", text)]
    limits = re.findall(r"campaign_limit=(\d+) findings_limit=(\d+)", text)
    assert len(fixed) == 4 and len(plain) == 2 and len(limits) == 2
    grace = 2
    shared = max(int(campaign) + int(findings) + grace * (findings != "0") for campaign, findings in limits)
    before_triage = sum(fixed) + plain[0] + shared + grace * (len(fixed) + 2)
    assert until - before_triage >= 60
    assert until + grace + plain[1] + grace < 600


def test_the_summary_of_a_folder(tmp_path):
    for name, content in NUMBERS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "triage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRIAGED))
    (tmp_path / "steps.txt").write_text("doctor 0 12\ncampaign 0 243\n")
    (tmp_path / "confirmed.md").write_text("# Findings\n\n| finding |\n|---|\n| F7 |\n\n1 of 1 confirmed.\n")
    (tmp_path / "tests.txt").write_text("....\n4 passed in 3.00s\n")
    Store.open(tmp_path / "corpus.db").close()
    done = python(ROOT / "tools" / "gpu_summary.py", tmp_path)
    assert done.returncode == 0, done.stderr
    times = json.loads((tmp_path / "times.json").read_text())
    assert times["compile"] == NUMBERS["compile"]
    assert (times["triage_seconds_median"], times["cases_per_minute"]) == (2.0, 10.0)
    assert times["steps"] == [["doctor", "0", "12"], ["campaign", "0", "243"]]
    summary = (tmp_path / "summary.md").read_text()
    for said in (
        "- TF32: off in matmul, off in cuDNN",
        "- numerics: float32_matmul highest, cudnn_tf32 False",
        "compile 250.0 ms (first 2000.0 ms), 8 replays 50.0 ms",
        "4 passed",
        "40 cases in 240 s (10.0/min): equal 30, miscompile 1, rounding 9.",
        "- F1: miscompile, _sfdp_pattern_28, necessary True, 1 hits",
        "Corpus integrity: ok.",
        "## Findings for targets\n\n| finding |\n|---|\n| F7 |",
        "- a: miscompile, joint_graph:x",
        "- b: b.py defines no make().",
    ):
        assert said in summary


def test_steps_that_left_nothing_are_said_to_have_left_nothing(tmp_path):
    done = python(ROOT / "tools" / "gpu_summary.py", tmp_path)
    assert done.returncode == 1 and done.stderr == ""
    assert json.loads((tmp_path / "times.json").read_text())["compile"] is None
    assert "see campaign.log" in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_the_times_of_a_small_attention():
    done = python(ROOT / "tools" / "gpu_times.py", "--device", "cpu", "--runs", "2")
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)
    assert (times["device"], times["runs"]) == ("cpu", 2)
    assert times["replays"] > 0 and all(times[f"{name}_seconds_median"] > 0 for name in ("eager", "compile", "replay"))
    missing = python(ROOT / "tools" / "gpu_times.py", "--device", "tpu")
    assert missing.returncode == 2 and missing.stderr.startswith("gpu_times: ")
