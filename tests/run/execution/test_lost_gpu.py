"""Cases that cost a process its GPU: they are refused in a sentence, and those after them are judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.worker.file_triage import triage_files
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.run.device import find_gpu_error

OUT_OF_RANGE = """
import torch

def program(x, index):
    return x[index] * 2

def make():
    return program, (torch.ones(8), torch.tensor([1, 99]))
"""
CLEAN = """
import torch

def program(x):
    return torch.tanh(x) * 2

def make():
    return program, (torch.arange(9.0),)
"""


def test_a_gpu_that_answers_every_call_with_an_error_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(device: torch.device) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nSearch for it")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", refuses)
    assert find_gpu_error(torch.device("cuda", 0)) == "CUDA error: device-side assert triggered"
    assert find_gpu_error(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert find_gpu_error(torch.device("cuda", 0)) is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_case_that_loses_the_gpu_costs_no_other(tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate((OUT_OF_RANGE, CLEAN, OUT_OF_RANGE, CLEAN)):
        paths.append(tmp_path / f"case{number}.py")
        paths[-1].write_text(text)
    answers = list(triage_files(paths, Conditions("cuda")))
    assert [answer.status for answer in answers] == [3, 0, 3, 0]
    assert "device-side assert" in (answers[0].error or "") and "eager" in (answers[0].error or "")
