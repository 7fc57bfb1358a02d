"""The command line as a user meets it: exit statuses, one sentence per error, JSON alone on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fuzzcompile.cli import main

KNOWN = Path(__file__).parent.parent / "known_issues"
CLEAN = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Linear(4, 4).eval(), (torch.randn(2, 4),)
"""
# Makes whatever is compiled crash, hang or grow, after eager has run.
CRASHING = "import os, torch._inductor.fx_passes.post_grad as p\np.remove_noop_ops = lambda graph: os.abort()\n"
HANGING = "import time, torch._inductor.fx_passes.post_grad as p\np.remove_noop_ops = lambda graph: time.sleep(600)\n"
# The negation of every addition: a wrong rewrite that no torch has.
PLANT = """
import torch
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

@register_graph_pattern(
    CallFunction(torch.ops.aten.sub.Tensor, KeywordArg("a"), KeywordArg("b")),
    pass_dict=joint_graph.pass_patterns[1],
)
def planted_sub(match, a, b):
    with match.graph.inserting_before(match.output_node()):
        new = match.graph.call_function(torch.ops.aten.add.Tensor, (a, b))
        new.meta.update(match.output_node().meta)
        match.output_node().replace_all_uses_with(new)
        match.graph.erase_node(match.output_node())
"""
SUBTRACTS = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda a, b: (a - b) * 2), (torch.randn(3, 4), torch.randn(3, 4))
"""

# What is no case, and a part of the sentence that says why.
MALFORMED = {
    "syntax": ("def make(:", "not valid Python"),
    "no_make": ("x = 1", "defines no make()"),
    "raises": ("raise ValueError('broken')", "raises ValueError"),
    "no_pair": ("def make(): return 3", "must return (module_or_callable, inputs)"),
    "make_raises": ("def make(): raise KeyError('k')", "raises KeyError"),
    "grad": ("def make(): return (abs, (1,))\nGRAD = 'maybe'", "GRAD is 'maybe'"),
    "config": ("def make(): return (abs, (1,))\nCONFIG = {'aot': {}}", "CONFIG knows"),
    "option": ("def make(): return (abs, (1,))\nOPTIONS = {'no_such': 1}", "has no no_such"),
    "mode": ("def make(): return (abs, (1,))\nMODE = 'fastest'", "no mode 'fastest'"),
}


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What an error said: one line on stderr, nothing on stdout, no traceback."""
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err.strip()


@pytest.fixture(scope="module")
def triaged_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, Any]]]:
    """The status and the JSON lines of one call: a bug, a clean case, a bug, and a folder of files that are no case."""
    folder = tmp_path_factory.mktemp("triaged")
    clean, malformed = folder / "clean.py", folder / "malformed"
    clean.write_text(CLEAN, encoding="utf-8")
    malformed.mkdir()
    for name, (source, _) in MALFORMED.items():
        Path(malformed, f"{name}.py").write_text(source, encoding="utf-8")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = call("triage", KNOWN / "issue_195320.py", clean, KNOWN / "issue_193265.py", malformed, "--json")
    return status, [json.loads(line) for line in out.getvalue().splitlines()]


def test_triage_prints_one_json_object_a_line_in_order(triaged_files):
    _, lines = triaged_files
    assert [line["case"] for line in lines] == ["issue_195320", "clean", "issue_193265", *sorted(MALFORMED)]
    reports = lines[:3]
    assert [r["verdict"] for r in reports][::2] == ["miscompile", "compile_error"]
    assert not reports[1]["is_bug"] and reports[1]["culprit"] is None
    wanted = {"schema", "case", "torch", "device", "verdict", "is_bug", "confidence", "evidence", "culprit",
              "contributors", "changed_bits", "ablations", "workaround", "signature", "cost"}  # fmt: skip
    assert all(wanted <= set(report) for report in reports)
    output = reports[0]["evidence"]["outputs"][0]
    assert {"name", "max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor",
            "within_default_tolerance", "torch_same", "cosine"} <= set(output)  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_file_that_is_no_case_has_its_line_and_decides_the_status(name, triaged_files):
    status, lines = triaged_files
    (line,) = [line for line in lines if line["case"] == name]
    assert status == 2
    assert line["verdict"] is None and not line["is_bug"]
    assert MALFORMED[name][1] in line["error"] and "\n" not in line["error"]


def test_a_file_that_is_no_case_is_wrong_usage(write_case, capsys):
    assert call("triage", write_case("x = 1")) == 2
    said = sentence(capsys)
    assert "defines no make()" in said and "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["triage", "no_such_file.py"], "names no case"),
        (["triage", str(KNOWN / "issue_195320.py"), "--device", "tpu"], "tpu"),
        (["triage", str(KNOWN / "issue_195320.py"), "--plant", "no_such_plant.py"], "plant"),
        (["triage", str(KNOWN / "issue_195320.py"), "--baseline", "no_such_baseline"], "Cannot read the baseline"),
        (["triage", str(KNOWN / "issue_195320.py"), "--junit", "no_such_folder/out.xml"], "Cannot write"),
        (["triage", str(KNOWN / "issue_195320.py"), "--call", "0"], "--call"),
        (["bisect", str(KNOWN / "issue_195320.py"), "--max-memory", "0.1"], "memory"),
        (["triage", str(KNOWN / "issue_195320.py"), "--against", "nothing"], "nothing"),
        (["run", "--budget", "soon"], "no budget"),
        (["run", "--budget", "0s"], "no budget"),
        (["run", "--seed", "-1"], "--seed"),
        (["run", "--frobnicate"], "frobnicate"),
        (["minimize", "F1"], "no corpus"),
        (["issue", "nothing"], "no corpus"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_usage_is_said_and_exits_with_2(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    assert says in sentence(capsys)


@pytest.mark.parametrize("command", ["triage", "run"])
def test_a_missing_gpu_is_unfit(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    target = [KNOWN / "issue_195320.py"] if command == "triage" else ["--budget", "1c"]
    assert call(command, *target, "--device", "cuda") == 3
    assert "CUDA" in sentence(capsys)


def test_an_unwritable_corpus_is_unfit(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert call("run", "--budget", "1c", "--corpus", tmp_path / "file" / "corpus.db") == 3
    assert "corpus" in sentence(capsys).lower()


def test_no_corpus_to_look_into(capsys, tmp_path):
    assert call("corpus", "list", "--corpus", tmp_path / "none.db") == 3
    assert "none.db" in sentence(capsys)


def test_help_and_version_need_no_torch():
    script = (
        "import sys\nfrom fuzzcompile.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--budget" in done.stdout


def test_triage_for_people_names_verdict_culprit_and_what_to_do(capsys):
    assert call("bisect", KNOWN / "issue_195320.py") == 1
    out = capsys.readouterr().out
    assert "miscompile (BUG" in out and "_sfdp_pattern_28_inference" in out and "what to do: report it" in out
    assert ["veto", "_sfdp_pattern_28", "yes"] in [line.split()[:3] for line in out.splitlines()]


def test_a_planted_rewrite_is_found_and_named(write_case, capsys):
    plant, case = write_case(PLANT, "plant.py"), write_case(SUBTRACTS)
    assert call("triage", case, "--plant", plant, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"], culprit["stage"]) == (
        "miscompile",
        "planted_sub",
        "joint_graph",
    )
    assert culprit["necessary"] is True and culprit["source"] == "plant.py"


def test_vetoes_take_bugs_away(write_case, capsys):
    plant, case = write_case(PLANT, "plant.py"), write_case(SUBTRACTS)
    vetoes = ("--veto", "planted_sub", "--veto", "_sfdp")
    assert call("triage", case, KNOWN / "issue_195320.py", "--plant", plant, *vetoes, "--json") == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(reports) == 2 and all(report["verdict"] in ("rounding", "equal") for report in reports)


def test_a_plant_that_raises_is_named(write_case, capsys):
    assert call("triage", write_case(SUBTRACTS), "--plant", write_case("1 / 0", "plant.py")) in (2, 3)
    assert "ZeroDivisionError" in sentence(capsys)


def test_a_crash_while_compiling_is_a_bug(write_case, capsys):
    arguments = [write_case(SUBTRACTS), "--plant", write_case(CRASHING, "plant.py"), "--json"]
    assert call("triage", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "crash" and "SIGABRT" in report["detail"]


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


def test_eager_that_crashes_or_hangs_cannot_be_judged(write_case, capsys):
    crash = write_case("import os\ndef make(): return (lambda x: os.abort()), (1,)", "crash.py")
    hang = write_case("import time\ndef make(): return (lambda x: time.sleep(600)), (1,)", "hang.py")
    assert call("triage", crash, hang, "--timeout", "3", "--workers", "2") == 3
    first, second = sentence(capsys).splitlines()
    assert "crash.py could not be judged" in first and "SIGABRT" in first
    assert "hang.py could not be judged" in second and "--timeout" in second


def test_doctor_says_that_a_campaign_can_run(tmp_path, capsys):
    assert call("doctor", "--device", "cpu", "--corpus", tmp_path / "corpus.db", "--json") == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["Inductor hooks"]["fine"] and checks["torch.compile"]["fine"] and checks["C++ compiler"]["fine"]


def test_doctor_without_a_compiler_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fuzzcompile.campaign.fitness.cxx_compiler", lambda: None)
    assert call("doctor", "--device", "cpu", "--corpus", tmp_path / "corpus.db") == 3
    assert "Install g++" in capsys.readouterr().out


def test_minimize_makes_a_reproducer_of_any_case(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call("minimize", KNOWN / "issue_195320.py", "--out", "small.py") == 0
    done = subprocess.run([sys.executable, "small.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "BUG" in done.stdout


def test_minimize_of_a_clean_case_says_so(write_case, capsys):
    assert call("minimize", write_case(CLEAN)) == 0
    assert "no bug" in capsys.readouterr().out


def test_bugs_of_the_baseline_are_known_and_do_not_count(write_case, tmp_path, capsys):
    bug, junit = KNOWN / "issue_195320.py", tmp_path / "out.xml"
    baseline = write_case("joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp\n", "known.txt")
    clean = write_case(CLEAN)
    assert call("triage", bug, clean, "--baseline", baseline, "--junit", junit, "--json", "--workers", "2") == 0
    known, fine = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert known["known"] is True and known["is_bug"] and "known" not in fine
    assert 'skipped="1"' in junit.read_text() and sorted(p.name for p in tmp_path.glob("*.xml*")) == ["out.xml"]


def test_a_bug_that_is_not_in_the_baseline_counts(write_case, tmp_path, capsys):
    plant, case = write_case(PLANT, "plant.py"), write_case(SUBTRACTS)
    earlier = write_case("lowering:-:miscompile\n", "known.txt")
    assert call("triage", case, "--plant", plant, "--baseline", earlier, "--json") == 1
    first = json.loads(capsys.readouterr().out)
    assert first["known"] is False and first["culprit"]["rewrite"] == "planted_sub"
    earlier.write_text(json.dumps(first))
    assert call("triage", case, "--plant", plant, "--baseline", earlier) == 0
    assert "miscompile (BUG, known" in capsys.readouterr().out


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
    ]
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(temporary)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
