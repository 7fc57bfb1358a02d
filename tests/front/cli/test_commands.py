"""The command line as a user meets it: exit statuses, one sentence per error, JSON alone on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import CLEAN, KNOWN, call, sentence

# What is no case, and a part of the sentence that says why.
MALFORMED = {
    "syntax": ("def make(:", "not valid Python"),
    "no_make": ("x = 1", "defines no make()"),
    "raises": ("raise ValueError('broken')\ndef make(): return abs, (1,)", "raises ValueError"),
    "no_pair": ("def make(): return 3", "must return (module_or_callable, inputs)"),
    "make_raises": ("def make(): raise KeyError('k')", "raises KeyError"),
    "grad": ("def make(): return (abs, (1,))\nGRAD = 'maybe'", "GRAD is 'maybe'"),
    "config": ("def make(): return (abs, (1,))\nCONFIG = {'aot': {}}", "CONFIG knows"),
    "option": ("def make(): return (abs, (1,))\nOPTIONS = {'no_such': 1}", "has no no_such"),
    "mode": ("def make(): return (abs, (1,))\nMODE = 'fastest'", "no mode 'fastest'"),
}


@pytest.fixture(scope="module")
def triaged_files(tmp_path_factory: pytest.TempPathFactory, kept_pools) -> tuple[Path, int, list[dict[str, Any]]]:
    """Folder, status and JSON lines of one call: a bug, a clean case, a bug, and a folder of files that are no case."""
    folder = tmp_path_factory.mktemp("triaged")
    clean, malformed = folder / "clean.py", folder / "malformed"
    clean.write_text(CLEAN, encoding="utf-8")
    malformed.mkdir()
    for name, (source, _) in MALFORMED.items():
        Path(malformed, f"{name}.py").write_text(source, encoding="utf-8")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzzcompile.diagnosis.worker.local_pool.open_pool", kept_pools)
        files = ("--log", folder / "log.jsonl", "--sarif", folder / "out.sarif")
        status = call(
            "triage", KNOWN / "issue_195320.py", clean, KNOWN / "issue_193265.py", malformed, "--json", *files
        )
    return folder, status, [json.loads(line) for line in out.getvalue().splitlines()]


def test_triage_prints_one_json_object_a_line_in_order(triaged_files):
    _, _, lines = triaged_files
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


def test_triage_logs_each_case_and_writes_the_bugs_as_sarif(triaged_files):
    folder, status, lines = triaged_files
    log = [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log] == ["triage_started", *["case_judged"] * len(lines), "triage_finished"]
    assert [(line["verdict"], line["error"]) for line in log[1:-1]] == [(r["verdict"], r.get("error")) for r in lines]
    assert (log[-1]["ended"], log[-1]["exit_status"], log[-1]["judged"]) == ("finished", status, len(lines))
    (sarif,) = json.loads(Path(folder, "out.sarif").read_text())["runs"]
    assert [r["partialFingerprints"]["signature/v1"] for r in sarif["results"]] == [r["signature"] for r in lines[:3:2]]
    source = (KNOWN / "issue_195320.py").read_text().splitlines()
    assert "matmul(w, v)" in source[sarif["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] - 1]
    assert len(sarif["invocations"][0]["toolExecutionNotifications"]) == len(MALFORMED)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_file_that_is_no_case_has_its_line_and_decides_the_status(name, triaged_files):
    _, status, lines = triaged_files
    (line,) = [line for line in lines if line["case"] == name]
    assert status == 2
    assert line["verdict"] is None and not line["is_bug"]
    assert MALFORMED[name][1] in line["error"] and "\n" not in line["error"]


def test_a_file_that_is_no_case_is_wrong_usage(write_case, capsys, shared_workers):
    assert call("triage", write_case("def make(): return 3")) == 2
    said = sentence(capsys)
    assert "must return (module_or_callable, inputs)" in said and "\n" not in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["triage", "no_such_file.py"], "no_such_file.py does not exist"),
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


@pytest.mark.slow
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
        "import sys\nfrom fuzzcompile.front.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--budget" in done.stdout


def test_doctor_says_that_a_campaign_can_run(tmp_path, capsys):
    assert call("doctor", "--device", "cpu", "--corpus", tmp_path / "corpus.db", "--json") == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["hooks"]["fine"] and checks["torch.compile"]["fine"] and checks["C++ compiler"]["fine"]


@pytest.mark.slow
def test_doctor_without_a_compiler_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert call("doctor", "--device", "cpu", "--corpus", tmp_path / "corpus.db") == 3
    assert "install g++" in capsys.readouterr().out
