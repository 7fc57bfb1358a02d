"""Derivatives that a compiled program loses or takes of other values: tangents, and tensors written to in between."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.capture.case_loader import load

CPU = torch.device("cpu")
FORWARD_MODE = """
import torch
from torch.autograd import forward_ad

def scaled(x):
    return x.sin() * 2

compiled = torch.compile(scaled{options})
with forward_ad.dual_level():
    x = forward_ad.make_dual(torch.arange(4.0), torch.ones(4))
    print(forward_ad.unpack_dual(compiled(x)).tangent)
"""
WRITES = """
import torch

GRAD = "enabled"
{options}

def make():
    weight = torch.arange(9.0).reshape(3, 3).requires_grad_()

    def product(x, weight):
        return x @ weight

    return product, (torch.arange(6.0).reshape(2, 3), weight)

def run(model, inputs):
    x, weight = inputs
    out = model(x, weight)
    x.add_(100)
    out.sum().backward()
    return weight.grad
"""
COPYING = """
def copying(graph, inputs):
    return lambda *args: graph(*(argument.clone() for argument in args))

BACKEND = copying
"""


@pytest.fixture
def judged(tmp_path):
    def judge(text):
        path = tmp_path / "case.py"
        path.write_text(text)
        return triage(load(path, CPU), CPU).to_json()

    return judge


@pytest.mark.slow
def test_a_lost_tangent_is_a_wrong_gradient(judged):
    report = judged(FORWARD_MODE.format(options=""))
    assert report["verdict"] == "wrong_gradient" and report["severity"] == "silent"
    wrong = [output["name"] for output in report["evidence"]["outputs"] if output["finding"] == "integer"]
    assert wrong == ["tangent of out0"]


def test_a_tangent_that_is_kept_is_compared(judged):
    report = judged(FORWARD_MODE.format(options=', backend="eager"'))
    assert report["verdict"] == "equal"
    assert [output["name"] for output in report["evidence"]["outputs"]] == ["out0", "tangent of out0"]


def test_a_gradient_of_values_written_later_is_silent(judged):
    report = judged(WRITES.format(options=""))
    assert (report["verdict"], report["severity"]) == ("accepts_invalid", "silent")
    assert report["evidence"]["outputs"][0]["finding"] == "far"


def test_a_gradient_of_what_was_there_before_is_none(judged):
    report = judged(WRITES.format(options=COPYING))
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)
    assert "before the write" in report["detail"]
