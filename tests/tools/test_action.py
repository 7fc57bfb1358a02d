"""The GitHub Action: its steps are run as the runner would run them, in a repository with awkward names."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "ci" / "fuzzcompile.yml").read_text(encoding="utf-8"))
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # as GitHub calls it
SCRIPTS = [step for step in ACTION["runs"]["steps"] if "run" in step]
EXPRESSION = re.compile(r"\$\{\{\s*([a-z]+(?:[.-][a-zA-Z_-]+)*)\s*\}\}")
MODELS = 'models of "ours" & others\' $HOME'
CLEAN = "import torch\n\ndef make():\n    return torch.relu, (torch.ones(3),)\n"


class Runner:
    """As much of GitHub's runner as a composite action of scripts needs."""

    def __init__(self, folder: Path, inputs: dict[str, str]) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.summary = folder / "summary.md"
        self._inputs = {name: given["default"] for name, given in ACTION["inputs"].items()} | inputs
        self._values: dict[str, str] = {"runner.temp": str(folder / "temp")}
        self._outputs = folder / "outputs"
        self._commands = folder / "bin"
        self._commands.mkdir()
        for name, words in {"python": (sys.executable,), "fuzzcompile": (sys.executable, "-m", "fuzzcompile")}.items():
            (self._commands / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            (self._commands / name).chmod(0o755)

    def value(self, expression: str) -> str:
        """What an expression of one name stands for; what was not set is empty, as on GitHub."""
        if expression.startswith("inputs."):
            return self._inputs[expression.removeprefix("inputs.")]
        return self._values.get(expression, "")

    def run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run the script of a step, and keep its outputs for later steps."""
        self._outputs.write_text("", encoding="utf-8")
        given = {
            name: EXPRESSION.sub(lambda match: self.value(match[1]), str(text))
            for name, text in step.get("env", {}).items()
        }
        assert not any("${{" in text for text in given.values())
        files = {"GITHUB_OUTPUT": self._outputs, "GITHUB_STEP_SUMMARY": self.summary, "GITHUB_ACTION_PATH": ROOT}
        path = os.pathsep.join([str(self._commands), os.environ["PATH"]])
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **given, **{name: str(file) for name, file in files.items()}}
        done = subprocess.run(
            [*SHELL, step["run"]],
            cwd=self.folder,
            env={**environment, "PATH": path, "PYTHONPATH": python_path},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        for line in self._outputs.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition("=")
            self._values[f"steps.{step.get('id')}.outputs.{name}"] = text
        return done

    def run_all(self) -> int:
        """Run every script but the installation; the exit status of the last."""
        for step in SCRIPTS[1:-1]:
            done = self.run(step)
            assert done.returncode == 0, done.stderr
        return self.run(SCRIPTS[-1]).returncode


@pytest.mark.slow
def test_models_with_awkward_names_are_triaged_and_the_results_lie_where_the_outputs_say(tmp_path):
    arguments = "--timeout\n100\n"
    runner = Runner(tmp_path, {"paths": f"{MODELS}/clean one.py\n{MODELS}/bu*.py\n", "arguments": arguments})
    models = runner.folder / MODELS
    models.mkdir()
    (models / "clean one.py").write_text(CLEAN, encoding="utf-8")
    (reproducer,) = (ROOT / "corpus").glob("torch-2.13*/fmin-stride/repro.py")
    (models / "bug.py").write_bytes(reproducer.read_bytes())
    assert runner.run_all() == 1
    outputs = {name: runner.value(given["value"][3:-2].strip()) for name, given in ACTION["outputs"].items()}
    assert (outputs["status"], outputs["bugs"]) == ("1", "1")
    results = runner.folder / outputs["results"]
    assert [json.loads(line)["is_bug"] for line in (results / "triage.jsonl").read_text().splitlines()] == [False, True]
    assert "bug" in (runner.folder / outputs["junit"]).read_text()
    assert json.loads((runner.folder / outputs["sarif"]).read_text())["runs"][0]["results"]
    (page,) = (results / "pages").iterdir()
    assert page.name == "1-bug.html" and "<html" in page.read_text()
    assert f"| {MODELS.replace('&', '&amp;')}/bug.py |" in runner.summary.read_text()

    (runner.folder / "known bugs.jsonl").write_bytes((results / "triage.jsonl").read_bytes())
    runner._inputs["baseline"] = "known bugs.jsonl"
    assert runner.run_all() == 0


@pytest.mark.slow
def test_wrong_usage_ends_the_job_with_its_status_and_a_summary(tmp_path):
    runner = Runner(tmp_path, {"paths": "nothing here"})
    assert runner.run_all() == 2
    assert "Wrong usage" in runner.summary.read_text()
    assert "nothing here" in runner.summary.read_text()


def test_scripts_take_what_users_give_from_the_environment_alone():
    for step in SCRIPTS:
        assert "${{" not in step["run"], "text of a user would become code"
        subprocess.run(["bash", "-n", "-c", step["run"]], check=True)


def test_every_input_is_used_and_the_example_gives_no_other():
    used = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(ACTION["runs"])))
    assert used == set(ACTION["inputs"])
    (step,) = [step for step in EXAMPLE["jobs"]["triage"]["steps"] if "with" in step]
    assert set(step["with"]) <= set(ACTION["inputs"])
