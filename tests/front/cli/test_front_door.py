"""Wrong input is answered at once, without torch; what is waited for is said."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from fuzzcompile.diagnosis.worker.veto_check import VetoCheck
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.front.cli.wait_line import WaitLine
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.model.versions import installed_torch
from fuzzcompile.programs.casefiles.case_file import read_case_file
from fuzzcompile.run.pool.worker import WorkerStartFailed, say
from fuzzcompile.run.pool.worker_pool import WorkerPool, WorkerState

SCRIPT = "import torch\nprint(torch.compile(torch.sin)(torch.ones(3)))\n"
# Arguments, and a part of what is said.
WRONG = [
    (["triage", "nothing.py"], "nothing.py does not exist."),
    (["triage", "no*.py"], "no*.py matches no Python file"),
    (["triage", "syntax.py"], "in line 2: `def f(:`"),
    (["triage", "plain.py"], "never calls torch.compile"),
    (["triage", "empty.ipynb"], "has no code cells"),
    (["triage", "test_it.py"], "assert_compiles_alike"),
    (["triage", "script.py", "--device", "tpu"], "'tpu' is not a device"),
    (["triage", "script.py", "--frobnicate"], "frobnicate"),
    (["triage", "script.py", "--veto", "post_grd:x"], "post_grad"),
    (["triage", "script.py", "--veto", "no_such_pass"], "--veto no_such_pass names no rewrite or pass of torch"),
    (["triage", "script.py", "--against", "nothing"], "'nothing'"),
    (["bisect", "syntax.py"], "in line 2"),
    (["minimize", "nothing.py"], "nothing.py does not exist."),
    (["minimize", "plain.py"], "never calls torch.compile"),
    (["issue", "nothing.ipynb"], "nothing.ipynb does not exist."),
    (["profile", "syntax.py"], "in line 2"),
    (["profile", "script.py", "--against", "nothing"], "Nothing runs as 'nothing'"),
    (["profile", "script.py", "--reference", "inductor:slow"], "inductor:max-autotune"),
    (["profile", "script.py", "--tolerances", "none.toml"], "none.toml"),
    (["triage", ""], "the name is empty"),
    (["run", "--budget", "3c", "--from", "syntax.py"], "in line 2"),
    (["script.py"], "triage script.py"),
    (["run", "script.py"], "triage script.py"),
    (["help", "frobnicate"], "No such command 'frobnicate'"),
    (["list"], "Did you mean 'corpus list'?"),
    (["triage", "script.py", "--timeout", "5m"], "'5m' is not a valid number"),
]
# Runs command lines one after another: the status and the output of each, and whether torch was imported.
EACH = """
import contextlib, io, json, sys
from fuzzcompile.front.cli import main
answers = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            main(arguments)
    except SystemExit as ending:
        answers.append([ending.code, said.getvalue()])
print(json.dumps([answers, "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[int, str]], bool]:
    folder = tmp_path_factory.mktemp("door")
    texts = {
        "syntax.py": "import torch\ndef f(:\n",
        "plain.py": "import torch\nprint(torch.ones(3))\n",
        "empty.ipynb": json.dumps({"nbformat": 4, "cells": []}),
        "test_it.py": "import torch\ndef test_it():\n    torch.compile(torch.sin)\n",
        "script.py": SCRIPT,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-c", EACH, json.dumps([arguments for arguments, _ in WRONG])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=True)
    answers, torch_came = json.loads(done.stdout)
    return answers, torch_came


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_wrong_input_is_answered_before_anything_starts(number: int, refused):
    status, said = refused[0][number]
    assert status == 2 and WRONG[number][1] in said and "starting" not in said


def test_no_wrong_input_imports_torch(refused):
    assert not refused[1]


def test_the_version_of_torch_is_known_without_importing_it():
    import torch

    assert installed_torch() == torch.__version__


# -- vetoes --------------------------------------------------------------------------------------------

RULES = [
    ("joint_graph", "_sfdp_pattern_1_inference", "_sfdp_pattern_1"),
    ("post_grad", "remove_noop_ops", "remove_noop_ops"),
    ("", "dedupe_symints", "dedupe_symints"),
]


class Pool:
    """A pool whose one worker knows the rules above."""

    def schedule(self, function: object, **options: object) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(RULES)
        return answer


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache holds the rules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = VetoCheck(Conditions(vetoes=("remove_noop_ops",)))
    assert known.check(), "without a list, a worker is asked"
    known.ask_worker(cast(WorkerPool, Pool()))


@pytest.mark.parametrize(
    "veto",
    [
        "_sfdp_pattern_1",
        "_sfdp",
        "=_sfdp_pattern_1",
        "joint_graph:_sfdp*",
        "remove_noop_ops",
        "post_grad:dedupe_symints",
    ],
)
def test_a_veto_that_means_something_needs_no_worker(veto: str, listed):
    assert not VetoCheck(Conditions(vetoes=(veto,))).check()


@pytest.mark.parametrize(
    ("veto", "nearest"),
    [("_sfpd_pattern", "_sfdp_pattern"), ("remove_noop_op", "remove_noop_ops"), ("post_grad:_sfdp", "_sfdp"),
     ("no_such_thing_at_all", "lists them")],
)  # fmt: skip
def test_a_veto_that_means_nothing_is_refused_without_a_worker(veto: str, nearest: str, listed):
    with pytest.raises(UsageError, match=f"--veto {veto} names no rewrite.*{nearest}"):
        VetoCheck(Conditions(vetoes=(veto,))).check()


def test_a_veto_may_mean_what_the_case_its_modules_or_a_plant_defines(tmp_path: Path, listed):
    (tmp_path / "passes.py").write_text("def my_pass(graph): ...\n")
    plant = tmp_path / "plant.py"
    plant.write_text("def planted_rule(match): ...\n")
    script = tmp_path / "script.py"
    script.write_text(f"import passes\n{SCRIPT}")
    conditions = Conditions(vetoes=("my_pass", "planted_rule"), plants=(plant,))
    assert not VetoCheck(conditions, [read_case_file(script)]).check()
    with pytest.raises(UsageError, match="my_pass"):
        VetoCheck(conditions).check()


def test_a_veto_that_no_source_of_torch_spells_needs_no_list(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"_sfpd_pattern names no rewrite.*_sfdp_pattern"):
        VetoCheck(Conditions(vetoes=("_sfpd_pattern",))).check()
    assert VetoCheck(Conditions(vetoes=("pass_pattern_0",))).check(), "torch makes this name as it runs"


def test_a_veto_may_mean_a_pass_of_a_package_that_the_case_imports(tmp_path: Path, listed):
    script = tmp_path / "script.py"
    script.write_text(f"import click\n{SCRIPT}")
    conditions = Conditions(vetoes=("get_current_context",))
    assert not VetoCheck(conditions, [read_case_file(script)]).check()
    with pytest.raises(UsageError):
        VetoCheck(conditions).check()


def test_what_a_veto_may_mean_is_what_the_compiler_registers_and_its_source_spells(tmp_path: Path, monkeypatch):
    rules = NamedFunction("fuzzcompile.compiler.source_probes:list_rules")()
    assert ("post_grad", "remove_noop_ops", "remove_noop_ops") in rules
    assert {stage for stage, name, _ in rules if name.startswith("_sfdp_pattern_1")} == {"joint_graph"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert VetoCheck(Conditions(vetoes=tuple(name for _, name, _ in rules))).check()


# -- what is waited for --------------------------------------------------------------------------------


def state(doing: str) -> WorkerState:
    return WorkerState(0, 1, "cpu", ready=True, task="judge a.py", busy_since=0.0, doing=doing)


def test_away_from_a_terminal_each_new_thing_is_a_line(capsys):
    with WaitLine() as waiting:
        waiting.say("starting")
        waiting.show_worker_state(state("compiling"))
        waiting.show_worker_state(state("compiling"))
    assert capsys.readouterr() == ("", "fuzzcompile: starting ...\nfuzzcompile: compiling ...\n")


def test_away_from_a_terminal_json_and_many_files_are_quiet(capsys):
    with WaitLine(as_json=True) as waiting:
        waiting.say("starting")
    with WaitLine(several=True) as waiting:
        waiting.say("starting")
        waiting.show_worker_state(state("compiling"))
    assert capsys.readouterr() == ("", "fuzzcompile: starting ...\n")


def test_on_a_terminal_a_line_changes_and_what_is_printed_goes_its_own_way(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, err = io.StringIO(), Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with WaitLine(as_json=True, several=True) as waiting:
        waiting.say("starting")
        waiting.show_worker_state(state("compiling"))
        print("{}")
        with waiting.pause():
            print("[]")
    assert out.getvalue() == "{}\n[]\n"
    assert "judge a.py: compiling" in err.getvalue() and "{}" not in err.getvalue()


def speak() -> str:
    say("working")
    return "done"


def refuse() -> None:
    raise EnvironmentUnfit("There is no such device.")


def test_a_worker_says_what_it_does():
    heard: list[WorkerState] = []
    with WorkerPool(1, listener=heard.append) as pool:
        assert pool.submit(speak).result(60) == "done"
    assert [(s.doing, s.task) for s in heard] == [("working", "speak")]
    say("nobody hears this outside of a worker")


def test_what_an_initializer_says_to_a_user_reaches_the_user():
    with WorkerPool(1, initializer=refuse) as pool, pytest.raises(WorkerStartFailed) as failed:
        pool.submit(speak).result(60)
    assert str(make_start_error(failed.value)) == "There is no such device."
