"""Gradients that autograd makes of zeros without memory crash nobody who perturbs or compares operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs

CPU = torch.device("cpu")
SOURCE = """
import torch

BACKWARD = True

def program(x, w):
    return (torch.sgn(x * 0.5) @ w).relu() + x * 0.25

def make():
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.{dtype}, requires_grad=True)
    return program, (x, torch.randn(4, 4, dtype=torch.{dtype}))
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_perturbed_run_ends(dtype: str, write_case: Callable[..., Path]):
    case = load_case(write_case(SOURCE.format(dtype=dtype)))
    perturbed = runs.run_eager(case, CPU, noise_seed=1)
    assert perturbed.failure is None
    assert [value.name for value in perturbed.values] == [value.name for value in runs.run_eager(case, CPU).values]
    assert runs.run_float64(case, CPU)[0].failure is None


def test_triage_calls_it_no_bug(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SOURCE.format(dtype="float16"))), CPU)
    assert not report.verdict.is_bug, report.detail
