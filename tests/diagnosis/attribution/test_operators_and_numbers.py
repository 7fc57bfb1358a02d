"""Bugs of this torch that are proved at Python's operators, or at numbers that the compiler makes symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.compiler.compile_changes import GraphBreak
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import CompileSettings

# A float that has become a symbol has no signed zero.
SIGNED_ZERO = """
import math
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * math.copysign(0.5, self.scale)

def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(4),)

def run(model, inputs):
    results = []
    for model.scale in (1.0, 2.0, -0.0):
        results.append(model(*inputs))
    return results
"""


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="which floats become symbols depends on the torch"
)
def test_a_number_that_is_wrong_as_a_symbol_is_named_with_what_keeps_its_value(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SIGNED_ZERO)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("dynamo", "VariableBuilder.wrap_symfloat")
    assert culprit["necessary"] is True and report["signature"].endswith(":copysign")
    assert {"toggle": "torch._dynamo.config.specialize_float = True", "repairs": True, "error": 0.0} in report[
        "ablations"
    ]


# A tensor of the form that a float is given: the graph that is made once more lacks the write to it.
WRITTEN_NUMBER = """
import torch

def program(x, total):
    total.sub_(0.5)
    return x * 2.0

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3), torch.randn((), dtype=torch.float64))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="which tensors are numbers depends on the torch")
def test_a_lost_write_to_a_tensor_that_is_taken_for_a_number_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(WRITTEN_NUMBER)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", "tensorify_python_scalars")
    assert culprit["necessary"] is True and report["confidence"] == "high"
    assert report["workaround"]["how"] == 'os.environ["TENSORIFY_PYTHON_SCALARS"] = "0"'


# Views of which a write is lost, and an operator that has no gradient: dynamo breaks at Python's operators too.
WRITTEN_WINDOWS = """
import torch

def program(a, b):
    windows = b.unfold(0, 2, 3)
    a.detach().mul_(7)
    windows += 2
    return windows.sum()

def run(model, inputs):
    first = model(inputs[0], inputs[1])
    inputs[0].mul_(2)
    return first

def make():
    base = torch.arange(8, dtype=torch.uint8)
    return program, (base[::2], base.clone())
"""
NO_GRADIENT = """
import torch

GRAD = "enabled"

def program(x):
    return (2 % x).sin()

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2),)

CALLS = [(torch.randn(1, 3, 2, requires_grad=True),)]
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what is wrong there depends on the torch")
@pytest.mark.parametrize(
    ("source", "family", "left"),
    [
        pytest.param(WRITTEN_WINDOWS, "unfold", "operator.iadd", marks=pytest.mark.slow),
        (NO_GRADIENT, "mod", "operator.mod"),
    ],
    ids=["a write", "a remainder"],
)
def test_a_bug_is_proved_at_an_operator_of_python(source: str, family: str, left: str, write_case: Callable[..., Path]):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert (report["culprit"]["family"], report["culprit"]["necessary"]) == (family, True)
    assert any(each["repairs"] and each["toggle"] == f"graph break at {left}" for each in report["ablations"])


def test_behind_an_operator_of_python_the_frame_is_compiled_on():
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.sin(x) * 2)

    how = Compilation((GraphBreak((("operator.mul", operator.mul),)),), screen=True)
    x = torch.ones(3)
    with open_session(CompileSettings(), how) as session:
        result = session.compile(program)(x)
    assert torch.allclose(result, program(x))
    assert [
        [node.name for node in frame.find_record(PRE_GRAD).snapshots[0].graph.nodes if node.op == "call_function"]
        for frame in session.ledger.frames
    ] == [["sin"], ["exp"]]


# Dynamo cannot break the graph in a loop: all of it would be left to eager mode, which is right whatever is at fault.
IN_A_LOOP = NO_GRADIENT.replace("return (2 % x).sin()", "for k in (1.0, 3.0):\n        x = (k % x).sin()\n    return x")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what is wrong there depends on the torch")
def test_a_break_that_leaves_nothing_compiled_proves_nothing(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(IN_A_LOOP)), torch.device("cpu")).to_json()
    assert report["culprit"]["family"] == "unknown" and report["culprit"]["necessary"] is not True
    assert report["confidence"] == "low"
