"""``--target``: what the commands say of a device that is told, as far as no compile is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calling import CLEAN, call, sentence

from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.model.conditions import Conditions, choose_running_device
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.targets import TARGETS

ALL = ("run", "triage", "bisect", "minimize", "issue", "passes", "coverage", "doctor")
TAKES_A_CASE = ("triage", "bisect", "minimize", "issue")
STAGES = {"joint_graph": "real code, fake device", "kernels": "not looked at: Triton is not installed"}


@pytest.fixture
def arguments(tmp_path: Path) -> Any:
    """The least that each command wants."""
    case = tmp_path / "case.py"
    case.write_text(CLEAN, encoding="utf-8")
    corpus = ("--corpus", tmp_path / "corpus.db")
    return lambda command: (command, case) if command in TAKES_A_CASE else (command, *corpus)


@pytest.mark.parametrize("command", ALL)
def test_an_unknown_target_is_refused_with_those_that_there_are(command, arguments, capsys):
    assert call(*arguments(command), "--target", "cuda:sm_99") == 2
    assert sentence(capsys) == f"fuzzcompile: 'cuda:sm_99' is not a target; use one of {', '.join(TARGETS)}."


@pytest.mark.parametrize("command", ALL)
def test_a_gpu_does_not_run_what_is_compiled_for_a_target(command, arguments, capsys):
    assert call(*arguments(command), "--target", "cuda:sm_90", "--device", "cuda:1") == 2
    assert sentence(capsys).startswith("fuzzcompile: With --target cuda:sm_90 cases run on the CPU: leave out --device")


def test_a_target_runs_on_the_cpu_whatever_the_machine_has():
    assert choose_running_device("auto", "rocm:gfx942") == choose_running_device("cpu", "cuda:sm_75") == "cpu"
    assert choose_running_device("auto", None) == "auto" and choose_running_device("cuda", None) == "cuda"


@pytest.mark.parametrize("command", ALL)
def test_the_help_lists_the_targets(command, capsys):
    assert call(command, "--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"--target {'|'.join(TARGETS)}" in text


def _looked(target: dict[str, Any] | None, error: str | None = None) -> Any:
    report: Any = (
        None if target is None else {"target": {"device": "cuda:sm_90", "confirmed_on_device": False} | target}
    )

    def judged(files, conditions):
        assert conditions == Conditions("cpu", target="cuda:sm_90")
        yield FileAnswer(files[0], report, error and error.replace("FILE", str(files[0])))

    return judged


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """The exit status and the checks of ``doctor --target`` with a made-up answer on the small program."""

    def examined(judged: Any) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr("fuzzcompile.front.machine_checks._list_checks", lambda device, corpus: ())
        monkeypatch.setattr("fuzzcompile.diagnosis.worker.file_triage.triage_files", judged)
        status = call("doctor", "--target", "cuda:sm_90", "--corpus", tmp_path / "c.db", "--json")
        return status, {check["name"]: check for check in json.loads(capsys.readouterr().out)}

    return examined


def test_doctor_says_how_each_stage_is_looked_at(doctor):
    status, checks = doctor(_looked({"stages": STAGES}))
    assert status == 0 and checks["cuda:sm_90"]["found"] == "1 stages of a small program can be looked at"
    assert checks["cuda:sm_90 joint_graph"]["fine"] and not checks["cuda:sm_90 kernels"]["fine"]
    assert checks["cuda:sm_90 kernels"]["found"].endswith("Triton is not installed")
    assert checks["places of torch"]["found"].endswith("answer for cuda:sm_90")


def test_doctor_refuses_a_machine_on_which_nothing_can_be_looked_at(doctor):
    status, checks = doctor(_looked({"stages": dict.fromkeys(STAGES, "not looked at: no guard")}))
    assert status == 3 and not checks["cuda:sm_90"]["fine"]
    status, checks = doctor(_looked(None, "FILE could not be judged: no guard."))
    assert status == 3 and checks["cuda:sm_90"]["found"] == "a small program could not be judged: no guard."

    def unfit(*_: object) -> Any:
        raise EnvironmentUnfit("No worker can be started: no guard.")

    status, checks = doctor(unfit)
    assert status == 3 and checks["cuda:sm_90"]["found"] == "No worker can be started: no guard."


def _assumed() -> str | None:
    from fuzzcompile.compiler.target.target_process import current_target

    target = current_target()
    return None if target is None else target.name


def test_workers_compile_for_the_target_and_nothing_else_does():
    with open_pool(Conditions("cpu", target="cuda:sm_90"), 1) as pool:
        assert pool.submit(_assumed).result() == "cuda:sm_90"
    assert _assumed() is None


@pytest.mark.slow
def test_passes_lists_what_the_cpu_never_registers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def names(*options: str) -> set[str]:
        assert call("passes", "--stage", "post_grad", "--json", *options) == 0
        return {json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()}

    told, cpu = names("--target", "cuda:sm_90"), names("--device", "cpu")
    assert cpu <= told and told - cpu
