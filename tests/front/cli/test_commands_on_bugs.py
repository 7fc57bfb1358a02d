"""What the commands answer on bugs: real and planted ones, known ones, and what crashes, hangs or is too large."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from calling import CLEAN, KNOWN, SUBTRACTS, call, sentence
from interrupting import heed_interrupts

from fuzzcompile.model.versions import installed_torch
from fuzzcompile.programs.scripts.reproducer import build_reproducer, confirm_reproducer

CORPUS = Path(__file__).resolve().parents[3] / "corpus/torch-2.13.0-cpu"

# Makes whatever is compiled crash, hang or grow, after eager has run.
CRASHING = "import os, torch._inductor.fx_passes.post_grad as p\np.remove_noop_ops = lambda graph: os.abort()\n"
HANGING = "import time, torch._inductor.fx_passes.post_grad as p\np.remove_noop_ops = lambda graph: time.sleep(600)\n"
# The bug that is quickly judged and minimized: it fails while it compiles.
QUICK, REWRITE = KNOWN / "issue_193265.py", "pointless_cumsum_replacement"


def test_triage_for_people_names_verdict_culprit_and_what_to_do(capsys, shared_workers):
    assert call("bisect", QUICK) == 1
    out = capsys.readouterr().out
    assert "compile_error (BUG" in out and f"culprit: {REWRITE}" in out and "report it: `" in out
    assert [REWRITE, "off", "yes"] in [line.split()[:3] for line in out.splitlines()]


@pytest.mark.slow
def test_a_planted_rewrite_is_found_and_named(write_case, plant, capsys, shared_workers):
    case = write_case(SUBTRACTS)
    assert call("triage", case, "--plant", plant, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"], culprit["stage"]) == (
        "miscompile",
        "planted_sub",
        "joint_graph",
    )
    assert culprit["necessary"] is True and culprit["source"] == "plant.py"


def test_vetoes_take_bugs_away(write_case, plant, capsys, shared_workers):
    case = write_case(SUBTRACTS)
    vetoes = ("--veto", "planted_sub", "--veto", "pointless_cumsum")
    assert call("triage", case, QUICK, "--plant", plant, *vetoes, "--json") == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(reports) == 2 and all(report["verdict"] in ("rounding", "equal") for report in reports)


@pytest.mark.slow
def test_a_plant_that_raises_is_named(write_case, capsys):
    assert call("triage", write_case(SUBTRACTS), "--plant", write_case("1 / 0", "plant.py")) in (2, 3)
    assert "ZeroDivisionError" in sentence(capsys)


@pytest.mark.slow
def test_a_crash_while_compiling_is_a_bug(write_case, capsys):
    arguments = [write_case(SUBTRACTS), "--plant", write_case(CRASHING, "plant.py"), "--json"]
    assert call("triage", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "crash" and "SIGABRT" in report["detail"]


@pytest.mark.slow
def test_a_compile_that_hangs_is_a_time_out(write_case, capsys):
    arguments = [
        write_case(SUBTRACTS),
        "--plant",
        write_case(HANGING, "plant.py"),
        "--timeout",
        "4",
        "--json",
    ]
    assert call("triage", *arguments) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "timeout"


@pytest.mark.slow
def test_eager_that_crashes_or_hangs_cannot_be_judged(write_case, capsys):
    crash = write_case("import os\ndef make(): return (lambda x: os.abort()), (1,)", "crash.py")
    hang = write_case("import time\ndef make(): return (lambda x: time.sleep(600)), (1,)", "hang.py")
    assert call("triage", crash, hang, "--timeout", "3") == 3
    first, second = sentence(capsys).splitlines()
    assert "crash.py could not be judged" in first and "SIGABRT" in first
    assert "hang.py could not be judged" in second and "--timeout" in second


@pytest.mark.slow
def test_minimize_makes_a_reproducer_of_any_case(tmp_path, monkeypatch, capsys, shared_workers):
    monkeypatch.chdir(tmp_path)
    assert call("minimize", QUICK, "--out", "small.py", "--log", "log.jsonl") == 0
    done = subprocess.run([sys.executable, "small.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "BUG" in done.stdout
    started, *probed, finished = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert started["event"] == "minimize_started" and finished["event"] == "minimize_finished"
    assert finished["confirmed"] and probed and {line["event"] for line in probed} == {"candidate_probed"}


@pytest.mark.slow
def test_a_planted_bug_is_confirmed_with_its_plant_alone(plant):
    report = {"verdict": "miscompile", "device": "cpu", "torch": "2.13.0", "plants": [plant.name]}
    script = build_reproducer(SUBTRACTS, report)
    assert "1 bug planted" in script and str(plant) not in script
    assert confirm_reproducer(script, plants=[plant]).confirmed
    assert confirm_reproducer(script).status == 0  # torch itself is right


def test_minimize_of_a_clean_case_says_so(write_case, capsys, shared_workers):
    assert call("minimize", write_case(CLEAN)) == 0
    assert "no bug" in capsys.readouterr().out


def test_bugs_of_the_baseline_are_known_and_do_not_count(write_case, tmp_path, capsys, shared_workers):
    junit, clean = tmp_path / "out.xml", write_case(CLEAN)
    baseline = write_case(f"post_grad:torch/_inductor/fx_passes/post_grad.py:{REWRITE}\n", "known.txt")
    assert call("triage", QUICK, clean, "--baseline", baseline, "--junit", junit, "--json") == 0
    known, fine = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert known["known"] is True and known["is_bug"] and "known" not in fine
    assert 'skipped="1"' in junit.read_text() and sorted(p.name for p in tmp_path.glob("*.xml*")) == ["out.xml"]


@pytest.mark.slow
def test_a_bug_that_is_not_in_the_baseline_counts(write_case, plant, capsys, shared_workers):
    case = write_case(SUBTRACTS)
    earlier = write_case("lowering:-:miscompile\n", "known.txt")
    assert call("triage", case, "--plant", plant, "--baseline", earlier, "--json") == 1
    first = json.loads(capsys.readouterr().out)
    assert first["known"] is False and first["culprit"]["rewrite"] == "planted_sub"
    earlier.write_text(json.dumps(first))
    assert call("triage", case, "--plant", plant, "--baseline", earlier) == 0
    assert "miscompile (BUG, known" in capsys.readouterr().out


@pytest.mark.slow
def test_a_case_that_is_too_large_is_refused_with_the_figure(write_case, capsys):
    large = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Linear(8192, 8192).eval(), (torch.randn(2, 8192),)
"""
    case = write_case(large)
    assert call("triage", case, write_case(CLEAN, "small.py"), "--max-memory", "0.8", "--json") == 3
    captured = capsys.readouterr()
    refused, fine = [json.loads(line) for line in captured.out.splitlines()]
    assert fine["verdict"] in ("equal", "rounding")
    said = refused["error"]
    assert "case needs about 1." in said and "(parameters 0.3" in said
    assert "--max-memory allows 0.8 GiB: raise --max-memory or judge a part with --module." in said


# What becomes of SIGTERM takes the way of SIGINT from its handler on.
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupted_triage_leaves_nothing_behind(number, write_case, tmp_path):
    started = tmp_path / "started"
    source = (
        f"import pathlib, subprocess, time\npathlib.Path({str(started)!r}).touch()\nsubprocess.run(['sleep', '9999'])"
    )
    hanging = write_case(source, "hanging.py")
    (temporary := tmp_path / "tmp").mkdir()
    command = [
        sys.executable,
        "-m",
        "fuzzcompile",
        "triage",
        hanging,
        hanging,
        "--json",
        "--junit",
        tmp_path / "out.xml",
        "--log",
        tmp_path / "log.jsonl",
    ]
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as running:
        while not started.exists():
            assert running.poll() is None
            time.sleep(0.1)
        below = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err.strip()) == (130, "", "Interrupted.")
    assert below and not psutil.wait_procs(below, timeout=10)[1]
    assert not [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert not (tmp_path / "out.xml").exists()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log] == ["triage_started", "triage_finished"]
    assert log[-1]["ended"] == "interrupted"


def test_there_is_nothing_to_file_of_a_clean_case(write_case, capsys, shared_workers):
    case = write_case(CLEAN)
    assert call("issue", case) == 0
    out, err = capsys.readouterr()
    assert out == "" and "is not to be filed: no bug: eager and compiled agree" in err and "--anyway" not in err
    assert call("issue", case, "--anyway", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fileable"] is False and answer["reason"].startswith("no bug")
    assert answer["draft"].startswith("> **Not to be filed: no bug: ") and "```" not in answer["draft"]


@pytest.mark.slow
@pytest.mark.skipif(not installed_torch().startswith("2.13"), reason="these findings are of torch 2.13")
@pytest.mark.parametrize(
    ("finding", "parts"),
    [
        (
            "addmm-drops-alpha",
            ("refuse a match in which `alpha` of `aten.add` is not `1`", "6 of 6", "(entry.extra_check)"),
        ),
        ("celu-alpha-zero", ("step aside where `alpha` of `aten.celu` is `0.0`", "6 of 6", "NotImplemented if ")),
        ("expm1-tiny-arguments", ("None was tried: `CppVecOverrides.expm1` is neither a pattern with a check nor ",)),
    ],
)
def test_a_fix_to_try_is_run_before_it_is_shown(finding, parts, tmp_path, capsys):
    corpus = tmp_path / "corpus.db"
    call("corpus", "import", "--trust", CORPUS / finding, "--corpus", corpus)
    capsys.readouterr()
    assert call("issue", "F1", "--fix", "--anyway", "--corpus", corpus) == 0
    section = capsys.readouterr().out.partition("A fix to try</summary>")[2].partition("</details>")[0]
    assert all(part in section for part in parts), section
