"""Reproducers of what was found for a target: scripts for a GPU that nobody had when they were made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.programs.ir.case_text import makes_tensors
from fuzzcompile.programs.scripts import reproducer
from fuzzcompile.programs.scripts.clean_process import FinishedProcess
from fuzzcompile.programs.scripts.reproducer import build_reproducer, confirm_for_target

SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.softmax(-1) * 2


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(3, 4),)
"""
TRAINED = SOURCE.replace("* 2", "* torch.arange(4)").replace(
    "torch.randn(3, 4)", "torch.randn(3, 4, requires_grad=True)"
)
TARGET = {"device": "cuda:sm_90", "stages": {}, "confirmed_on_device": False}
SIGNATURE = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
# Runs a script as if the CPU were a GPU; the compiler, which asks after the script did, gets the true answer.
AS_IF = """
import runpy, sys, torch
true = torch.cuda.is_available
def asked():
    torch.cuda.is_available = true
    return True
torch.cuda.is_available = asked
torch.cuda.get_device_name = lambda: "GPU of a test"
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self: self
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def report(**fields: Any) -> ReportJson:
    output = {
        "name": fields.pop("name", "out0"),
        "finding": "far",
        "max_abs_error_eager": 1e-7,
        "max_abs_error_compiled": 0.5,
    }
    evidence = {"outputs": [output | {"noise_floor": 2e-7, "scale": 1.0}]}
    of: Any = {"verdict": "miscompile", "is_bug": True, "torch": "2.13.0", "device": "cpu", "evidence": evidence}
    return of | {"culprit": None, "confidence": "high", "signature": SIGNATURE, "target": TARGET} | fields


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target") / "repro.py"
    path.write_text(build_reproducer(SOURCE, report()), encoding="utf-8")
    return path


def test_it_runs_on_a_gpu_and_says_what_the_compiler_was_told(script):
    text = script.read_text()
    assert text.splitlines()[0].endswith('torch 2.13.0 told of cuda:sm_90, on no GPU."""')
    assert "model.cuda()" in text and "x.cuda()" in text and "fuzzcompile" not in text


def test_without_a_gpu_it_runs_nothing_and_exits_with_3(script, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "no CUDA device here: nothing was run\n")


@pytest.mark.slow
def test_with_one_it_judges(script):
    done = subprocess.run([sys.executable, "-c", AS_IF, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GPU of a test" in done.stdout and "OK: " in done.stdout


def test_what_the_program_makes_is_made_on_the_gpu_and_the_inputs_as_they_were():
    wrong = report(verdict="wrong_gradient", name="gradient of input0")
    text = build_reproducer(TRAINED + "\nBACKWARD = True\n", wrong)
    assert 'torch.device("cuda")' in text and 'device="cpu")' in text
    plain = build_reproducer(SOURCE, report())
    assert "torch.device" not in plain


@pytest.mark.parametrize(
    ("expression", "makes"),
    [("torch.zeros(3)", True), ("torch.zeros(3, device=x.device)", False), ("torch.relu(x)", False)],
)
def test_tensors_without_a_device_are_seen(expression, makes):
    source = (
        f"import torch\ndef program(x):\n    return {expression}\ndef make():\n    return program, (torch.ones(3),)"
    )
    assert makes_tensors(source) is makes


@pytest.mark.parametrize(
    ("status", "said", "confirmed"),
    [
        (1, report(), True),
        (1, report(signature="post_grad:elsewhere.py:x"), False),
        (0, report(verdict="rounding", is_bug=False, signature=None), False),
        (3, None, False),
    ],
)
def test_it_is_confirmed_by_judging_it_for_the_target(status, said, confirmed, monkeypatch):
    def alone(source, *, command, **_):
        assert command[-2:] == ("--target", "cuda:sm_90") and source == SOURCE
        return FinishedProcess(
            status, f"a warning\n{json.dumps(said)}\n" if said is not None else "fuzzcompile: no worker\n"
        )

    monkeypatch.setattr(reproducer, "run_alone", alone)
    assert confirm_for_target(SOURCE, report()).confirmed is confirmed
