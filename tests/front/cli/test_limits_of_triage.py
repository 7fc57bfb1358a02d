"""``triage --tolerances FILE`` and ``triage --math-only``."""

from __future__ import annotations

import json

import pytest
from calling import CLEAN, call, sentence

from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.tolerances import Tolerances

# Runs where it must not under --math-only, whatever it sets for the process itself.
WATCHFUL = """
import torch

class Watchful(torch.nn.Module):
    def forward(self, x):
        if torch.backends.cuda.flash_sdp_enabled() or torch.get_float32_matmul_precision() != "highest":
            raise ValueError("not math alone")
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

def make():
    torch.manual_seed(0)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_float32_matmul_precision("medium")
    return Watchful().eval(), (torch.randn(1, 2, 8, 16),)
"""


def test_the_command_refuses_a_wrong_file_before_it_judges(write_case, tmp_path, capsys):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[same_backend.float33]\nfactor = 2", encoding="utf-8")
    assert call("triage", write_case(CLEAN), "--tolerances", wrong) == 2
    assert "no dtype 'float33'" in sentence(capsys)


def test_math_only_holds_in_eager_and_compiled_runs_and_the_report_says_what_it_is_for(write_case):
    path = str(write_case(WATCHFUL))
    assert judge_file(JudgeTask(path=path)).report["verdict"] == "invalid"
    report = judge_file(JudgeTask(path=path, math_only=True, tolerances=Tolerances.load())).report
    assert report["verdict"] in ("equal", "rounding")
    notes = report["evidence"]["notes"]
    assert any("math only" in note and "not for production" in note for note in notes)
    assert any("--tolerances" in note for note in notes)


TAKES_A_SIZE = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, required=True)
torch.compile(torch.sin)(torch.ones(parser.parse_args().size))
"""


@pytest.mark.slow
def test_a_script_takes_its_own_arguments_after_two_dashes(write_case, capsys):
    script = write_case(TAKES_A_SIZE)
    assert call("triage", script, "--json", "--", "--size", "3") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] in ("equal", "rounding")
    assert call("triage", script, "--size", "3") == 2
    assert f"follows after `--`: `fuzzcompile triage {script} -- --size 3`" in capsys.readouterr().err.replace("\n", "")


TAKES_A_SCALE = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, required=True)
scale = parser.parse_args().scale

def f(x, w):
    return torch.add(x, x @ w, alpha=scale)

torch.compile(f)(torch.ones(2, 2), torch.ones(2, 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["minimize", "issue", "profile"])
def test_every_command_that_reads_a_script_hands_it_its_arguments(write_case, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    asked = {"minimize": ("--budget", "10s", "--out", "small.py"), "issue": ("--anyway",), "profile": ("--json",)}
    script, own = write_case(TAKES_A_SCALE), ("--device", "cpu", *asked[command])
    assert call(command, script, *own, "--", "--scale", "2") == (command == "profile")
    said = capsys.readouterr().out
    if command == "minimize":  # whatever there was time for, the script has its arguments
        small = (tmp_path / "small.py").read_text()
        assert "sys.argv[1:] = ['--scale', '2']" in small or ("alpha=2.0" in small and "-- --scale 2" in said)
    else:
        assert ("jump" if command == "profile" else "alpha=2.0") in said


def test_a_finding_takes_no_arguments(capsys):
    assert call("issue", "F1", "--", "--scale", "2") == 2
    assert "F1 is a finding, which takes no arguments" in capsys.readouterr().err
