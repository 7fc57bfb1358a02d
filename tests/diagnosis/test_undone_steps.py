"""A rewrite that changes what its graph means, and a later one that undoes it: nobody can observe either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from pattern_tables import restored
from torch._inductor.decomposition import decompositions
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.pattern_matcher import Arg, CallFunction, Match, register_graph_pattern

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten
SOURCE = """
import torch

def make():
    torch.manual_seed(0)
    return torch.floor, (torch.randn(4, 4) * 9,)
"""
FLOOR = CallFunction(aten.floor.default, Arg())


@pytest.fixture
def negated() -> Iterator[None]:
    with restored(joint_graph.pass_patterns[0]) as table:

        @register_graph_pattern(FLOOR, pass_dict=table)
        def negate(match: Match, x: torch.fx.Node) -> None:
            match.replace_by_example(lambda x: -torch.floor(x), [x])

        yield


@pytest.fixture
def undone() -> Iterator[None]:
    with restored(post_grad.pass_patterns[1]) as table:

        @register_graph_pattern(CallFunction(aten.neg.default, FLOOR), pass_dict=table)
        def undo(match: Match, x: torch.fx.Node) -> None:
            match.replace_by_example(torch.floor, [x])

        yield


def judged(write_case) -> dict[str, object]:
    return triage(load_case(write_case(SOURCE)), torch.device("cpu")).to_json()


def test_what_is_not_undone_is_a_bug(write_case, negated):
    report = judged(write_case)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("miscompile", "negate")


def test_what_is_undone_is_told_and_no_bug(write_case, negated, undone):
    report = judged(write_case)
    assert (report["verdict"], report["is_bug"], report["culprit"]) == ("equal", False, None)
    assert "negate moves the float64 result" in report["detail"] and "undoes it" in report["detail"]


# The epsilon of a norm depends on the dtype; the decomposition has float32's, which no half shows.
EPSILON = """
import torch
from torch import nn
from torch.nn import functional as F

PATH = "aoti"

class Model(nn.Module):
    def forward(self, q, k, v):
        q, k = F.rms_norm(q, (3,)), F.rms_norm(k, (3,))
        return ((q @ k.transpose(-2, -1)) * 0.5774).softmax(-1) @ v

def make():
    torch.manual_seed(650587)
    q, k, v = (torch.randn(3, 2, rows, 3).half() for rows in (7, 3, 3))
    return Model().eval(), (q, k, v)
"""


@pytest.mark.slow
def test_what_the_dtype_of_a_program_could_not_show_is_rounding(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(EPSILON)), torch.device("cpu")).to_json()
    assert report["verdict"] == "rounding" and report["culprit"] is None


# Elements that are much smaller than the rest show it all the same.
SMALL_ELEMENTS = """
import torch

def make():
    torch.manual_seed(0)
    x = torch.randn(64).clamp(-1, 1)
    x[::2] = torch.linspace(1e-6, 2e-5, 32)
    return torch.expm1, (x.bfloat16(),)
"""


def test_what_small_elements_show_of_a_low_precision_program_is_a_bug(write_case: Callable[..., Path], monkeypatch):
    def flip(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < 4e-5, -x, torch.exp(x) - 1)

    monkeypatch.setitem(decompositions, aten.expm1.default, flip)
    report = triage(load_case(write_case(SMALL_ELEMENTS)), torch.device("cpu")).to_json()
    assert report["verdict"] == "miscompile" and "expm1" in report["culprit"]["rewrite"]


# With ``beta=0`` the bias is not read, whatever it holds; 0 * NaN would be NaN.
UNREAD = """
import torch

def make():
    torch.manual_seed(0)
    given = torch.full((3, 5), float("nan")), torch.randn(3, 4), torch.randn(4, 5)
    return lambda b, x, w: torch.addmm(b, x, w, beta=0).relu(), given
"""


@pytest.fixture
def multiplied() -> Iterator[None]:
    with restored(joint_graph.pass_patterns[0]) as table:

        @register_graph_pattern(CallFunction(aten.addmm.default, Arg(), Arg(), Arg(), beta=0), pass_dict=table)
        def multiply(match: Match, b: torch.fx.Node, x: torch.fx.Node, w: torch.fx.Node) -> None:
            match.replace_by_example(lambda b, x, w: b * 0 + x @ w, [b, x, w])

        yield


@pytest.fixture
def left_out() -> Iterator[None]:
    product = CallFunction(aten.mm.default, Arg(), Arg())
    with restored(post_grad.pass_patterns[0]) as table:

        @register_graph_pattern(
            CallFunction(aten.add.Tensor, CallFunction(aten.mul.Tensor, Arg(), 0), product), pass_dict=table
        )
        def leave_out(match: Match, b: torch.fx.Node, x: torch.fx.Node, w: torch.fx.Node) -> None:
            match.replace_by_example(lambda b, x, w: x @ w, [b, x, w])

        yield


def test_a_bias_of_nan_that_neither_side_reads_is_no_bug(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(UNREAD)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"], report["culprit"]) == ("equal", False, None)
    assert report["evidence"]["outputs"][0]["max_abs_error_compiled"] == 0.0


def test_a_bias_of_nan_that_one_step_reads_and_a_later_one_leaves_out_is_no_bug(
    write_case: Callable[..., Path], multiplied: None, left_out: None
):
    report = triage(load_case(write_case(UNREAD)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"], report["culprit"]) == ("equal", False, None)
    assert "multiply moves the float64 result by inf" in report["detail"] and "undoes it" in report["detail"]


def test_a_bias_of_nan_that_a_step_reads_is_a_bug(write_case: Callable[..., Path], multiplied: None):
    report = triage(load_case(write_case(UNREAD)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("nonfinite", "multiply")
