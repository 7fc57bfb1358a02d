"""What a program enters and does not leave is left for the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.transforms import leave_transforms


def differentiate_forward() -> torch.Tensor:
    return torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.ones(2),))[1]


@pytest.mark.parametrize(
    "enter",
    [
        forward_ad.enter_dual_level,
        torch._C._enter_dual_level,
        lambda: torch._C._functorch._vmap_increment_nesting(2, "error"),
    ],
)
def test_what_a_block_enters_is_left(enter: Callable[[], object]):
    with leave_transforms():
        enter()
    assert differentiate_forward().tolist() == [1, 1]
    assert not torch._C._functorch.get_interpreter_stack()


def test_what_was_entered_before_stays():
    with forward_ad.dual_level(), leave_transforms():
        pass
    with forward_ad.dual_level():
        with leave_transforms():
            pass
        assert forward_ad.unpack_dual(forward_ad.make_dual(torch.ones(2), torch.ones(2))).tangent is not None


# Eager mode makes no tangents in inference mode, and raises within a level.
REFUSED = """
import torch
from torch.autograd import forward_ad

GRAD = "inference_mode"

def program(x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())
        return x + forward_ad.unpack_dual(dual.sin()).tangent

def make():
    return program, (torch.ones(2, 3),)
"""


def test_a_refused_tangent_says_nothing_of_the_next_program(write_case):
    report = triage(load_case(write_case(REFUSED)), torch.device("cpu")).to_json()
    assert report["verdict"] == "accepts_invalid"
    assert differentiate_forward().tolist() == [1, 1]


# A case that enters vmap as it is loaded, and never leaves it.
LEAKING = """
import torch

torch._C._functorch._vmap_increment_nesting(2, "error")

def make():
    return (lambda x: x + 1), (torch.ones(2),)
"""


def test_a_case_that_stays_in_a_transform_says_nothing_of_the_next_one():
    with pytest.raises(RuntimeError, match=r"vmap|transform"):
        judge_file(JudgeTask(path="leaking.py", source=LEAKING))
    assert not torch._C._functorch.get_interpreter_stack()
    assert differentiate_forward().tolist() == [1, 1]
