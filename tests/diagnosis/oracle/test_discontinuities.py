"""Where rounding decides between two results, eager mode has no digits, though a few perturbed runs decide alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._inductor import lowering

from fuzzcompile.diagnosis import decision
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

# The mean of what is normalised is zero up to rounding, whose sign each output hangs on.
SOURCE = """
import torch
from torch.nn import functional as F


def program(*given):
    signs = [F.layer_norm(rows, rows.shape[-1:]).mean() > 0 for rows in given]
    return [torch.where(sign, rows.sin(), rows.cos()) for sign, rows in zip(signs, given)]


def make():
    torch.manual_seed(2)
    return program, tuple(torch.randn(6, 4) for _ in range(12))
"""


@pytest.mark.slow
def test_rounding_that_few_perturbed_runs_show_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    case = load_case(write_case(SOURCE))
    assert str(triage(case, torch.device("cpu")).verdict) == "unstable"
    monkeypatch.setattr(decision, "MANY_NOISE_RUNS", decision.NOISE_RUNS)
    assert triage(case, torch.device("cpu")).verdict.is_bug  # so it takes more


# Close to a pole of the tangent, bfloat16 and float32 are on either side of it, and its logarithm is a number on one.
POLES = """
import torch


def program(x):
    angles = torch.mvlgamma(x, 3) * 30000.0
    return torch.log(torch.tan(angles) * 1e-30)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 9, 9, dtype=torch.bfloat16),)
"""


def test_an_element_of_many_that_every_run_has_elsewhere_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    case = load_case(write_case(POLES))
    assert not triage(case, torch.device("cpu")).is_bug
    monkeypatch.setattr(decision, "_LOOK_WRONG", decision.MANY_NOISE_RUNS + 1)
    assert triage(case, torch.device("cpu")).is_bug  # by one element of 324


@pytest.mark.slow
def test_many_elements_that_are_no_numbers_are_a_bug_beside_a_pole(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    logarithm = torch.ops.aten.log.default
    original = lowering.lowerings[logarithm]
    monkeypatch.setitem(lowering.lowerings, logarithm, lambda x: lowering.mul(original(x), float("nan")))
    assert triage(load_case(write_case(POLES)), torch.device("cpu")).is_bug


# The variance is a difference of numbers of which its own size is a few units in the last place: now and then it is 0.
CANCELLING = """
import torch
from torch import nn


class RunningNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(1e-4))
        self.register_buffer("total", torch.zeros(6))
        self.register_buffer("squares", torch.zeros(6))

    def forward(self, x):
        self.count += x.shape[0]
        self.total += x.sum(0)
        self.squares += (x ** 2).sum(0)
        mean = self.total / self.count
        variance = self.squares / self.count - mean ** 2
        return (x - mean) / torch.sqrt(variance.abs() + 1e-8)


def make():
    torch.manual_seed(0)
    return RunningNorm(), (1000 + 0.01 * torch.randn(256, 6),)
"""


def test_a_column_in_which_all_digits_cancel_in_the_compiled_run_alone_is_no_bug(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(CANCELLING)), torch.device("cpu"))
    assert str(report.verdict) == "unstable", report.detail


@pytest.mark.slow
def test_columns_that_are_wrong_in_each_compile_are_a_bug_beside_it(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    sqrt = lowering.lowerings[torch.ops.aten.sqrt.default]
    wrong = lambda x: lowering.lowerings[torch.ops.aten.mul.Tensor](sqrt(x), 1e-6)  # noqa: E731
    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.sqrt.default, wrong)
    assert triage(load_case(write_case(CANCELLING)), torch.device("cpu")).verdict.is_bug


@pytest.mark.parametrize(
    ("program", "is_read"),
    [
        ("torch.empty(3, 4) * 2 + x", True),
        ("torch.empty_like(x, dtype=torch.int64) + 1", True),
        ("torch.empty(3, 4).copy_(x) * 2", False),
    ],
)
def test_memory_that_nobody_wrote_to_accuses_nobody(program: str, is_read: bool, write_case: Callable[..., Path]):
    source = f"import torch\n\n\ndef program(x):\n    return {program}\n\n\n"
    case = load_case(write_case(f"{source}def make():\n    return program, (torch.ones(3, 4),)\n"))
    assert (str(triage(case, torch.device("cpu")).verdict) == "unstable") == is_read


HUGE = """
import torch


def program(*given):
    return {program}


def make():
    return program, ({inputs},)
"""


OVER_TWO = "torch.zeros(3).double(), *torch.tensor([[-8.99e307] * 3, [0.5] * 3]).double()"
ONE_OF_TWO = "torch.tensor([[torch.inf, -torch.inf, -4.0]]), torch.tensor([[1.7e38, torch.inf, -6.0]])"


@pytest.mark.parametrize(
    ("program", "inputs", "is_bug"),
    [
        ("torch.addcmul(*given, value=2.0)", OVER_TWO, False),  # 2 * x is infinite, 2 * (x * 0.5) is not
        ("torch.linalg.cross(*given)", ONE_OF_TWO, False),
        ("torch.lerp(*given, -1.8)", "torch.zeros(1), torch.tensor([-1.7e38])", True),  # eager mode is right
    ],
)
def test_what_overflows_first_is_no_bug_where_eager_overflows(
    program: str, inputs: str, is_bug: bool, write_case: Callable[..., Path]
):
    case = load_case(write_case(HUGE.format(program=program, inputs=inputs)))
    assert triage(case, torch.device("cpu")).verdict.is_bug == is_bug
