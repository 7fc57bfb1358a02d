"""Plain scripts in processes of their own: their ladder, and kernels that are wrong without a compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fuzzcompile
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.scripts.clean_process import run_alone
from fuzzcompile.programs.scripts.issue_script import build_issue_script
from fuzzcompile.programs.scripts.reproducer import build_reproducer, choose_script

pytestmark = pytest.mark.slow

# What only compiled code does stands for a bug of dynamo: every backend shows it.
COMPILED_DIFFERS = """
import torch

def program(x):
    return x + 1 if torch.compiler.is_compiling() else x

def make():
    return program, (torch.ones(3),)
"""
DIES = COMPILED_DIFFERS.replace("x + 1 if", "(os._exit(7) or x) if").replace(
    "import torch", "import os\nimport torch", 1
)
# A kernel of the case's own reads a transposed operand as if it were laid out row by row.
WRONG_KERNEL = """
import torch

LIBRARY = torch.library.Library("aten", "IMPL")

def erfinv(x):
    return x.as_strided(x.shape, torch.empty(x.shape).stride()) * 2

LIBRARY.impl("erfinv", erfinv, "CPU")

def program(x, y):
    return torch.erfinv(x.cos()) + torch.erfinv(y)

def make():
    return program, (torch.rand(3, 2), torch.rand(2, 3).t())
"""
WRONG_IN_EVERY_LAYOUT = """
import torch
import torch.nn.functional as F

LIBRARY = torch.library.Library("aten", "IMPL")

def wrong(*args):
    return {wrong}

LIBRARY.impl("{operator}", wrong, "CPU", allow_override=True)

def make():
    torch.manual_seed(0)
    return (lambda x: {call}), (torch.randn(2, 3),)
"""


def report(verdict, finding="far"):
    evidence = {"outputs": [{"name": "out0", "finding": finding, "max_abs_error_compiled": 1.0}]}
    return {"verdict": verdict, "is_bug": True, "torch": "2.13.0", "evidence": evidence}


def test_the_ladder_says_which_backend_differs_and_the_script_ran_alone():
    found = report("miscompile")
    shown = build_issue_script(COMPILED_DIFFERS, choose_script(COMPILED_DIFFERS, found), found)
    assert shown["plain_shows"]
    assert shown["plain_output"] == "tensor([1., 1., 1.])\ntensor([2., 2., 2.])"
    assert [rung["backend"] for rung in shown["ladder"]] == [
        "eager",
        "aot_eager",
        "aot_eager_decomp_partition",
        "inductor",
    ]
    assert {rung["result"] for rung in shown["ladder"]} == {"wrong"}
    assert "torch" in shown["collect_env"].lower() and "/home" not in shown["collect_env"]


def test_a_script_that_shows_nothing_is_not_said_to_show_the_bug():
    harmless = COMPILED_DIFFERS.replace("x + 1 if", "x if")
    found = report("miscompile")
    shown = build_issue_script(harmless, choose_script(harmless, found), found)
    assert not shown["plain_shows"]
    assert {rung["result"] for rung in shown["ladder"]} == {"right"}


def find_wrong_kernel(source: str, *operator: str) -> dict[str, Any]:
    package = {"PYTHONPATH": str(Path(fuzzcompile.__file__).parents[1])}
    command = ("-m", "fuzzcompile.programs.scripts.kernels")
    ran = run_alone(source, command=command, arguments=operator, environment=package, timeout=120)
    return json.loads(next(line for line in ran.output.splitlines() if line.startswith("{")))


@pytest.mark.parametrize(
    "operator, call, wrong, expected",
    [
        ("cosh", "x.cosh()", "args[0].exp() * 0.51 + (-args[0]).exp() / 2", "numpy.cosh(x)"),
        (
            "_softmax",
            "x.softmax(-1)",
            "args[0].exp()",
            "numpy.exp(x - numpy.logaddexp.reduce(x, axis=-1, keepdims=True))",
        ),
        ("gelu", "F.gelu(x)", "args[0].sigmoid()", "x / 2 * (1 + numpy.vectorize(math.erf)(x / 1.4142135623730951))"),
        (
            "huber_loss",
            "F.huber_loss(x, x * 2 + 1)",
            "(args[0] - args[1]).abs().mean()",
            None,
        ),  # has a decomposition alone
    ],
)
def test_a_kernel_that_is_wrong_in_every_layout_is_held_against_its_formula(operator, call, wrong, expected):
    planted = WRONG_IN_EVERY_LAYOUT.format(operator=operator, call=call, wrong=wrong)
    answer = find_wrong_kernel(planted, f"aten.{operator}.default")
    script, *others = answer["scripts"]
    assert f"torch.ops.aten.{operator}(" in script and "torch.compile" not in script
    assert f"expected = {'torch.tensor(' if expected is None else expected}" in script
    assert len(others) == (expected is not None) and len(script.strip().splitlines()) <= 11
    registered = planted[: planted.index("def make")]
    assert "AssertionError" in run_alone(registered + script).output
    assert run_alone(script).status == 0


BATCH_NORM = """
import torch
import torch.nn.functional as F

BACKWARD = True

def program(x):
    mean, variance, weight = torch.randn(2), torch.ones(2), torch.randn(2)
    return F.batch_norm(x, mean, variance, weight, training=True).squeeze(-1).transpose(1, 2)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2, 1, requires_grad=True),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_values_of_which_the_kernel_makes_nan_are_drawn_positive_first():
    negative = BATCH_NORM.replace("torch.ones(2)", "-torch.ones(2)").replace("training=True", "training=False")
    for source, drawn in ((BATCH_NORM, "randn"), (negative, "rand")):
        scripts = find_wrong_kernel(source, "aten.native_batch_norm_backward.default")["scripts"]
        assert f"grad_out = torch.{drawn}(" in scripts[0]
        alone = run_alone(scripts[0], timeout=120)
        assert "Mismatched elements" in alone.output and "nan" not in alone.output


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_where_eager_is_wrong_an_issue_has_a_script_of_eager_mode_alone():
    kernel = {"operator": "aten.native_batch_norm_backward.default", "wrong_in": "eager", "about": "layout"}
    culprit = {"stage": "aten", "rewrite": kernel["operator"], "details": {"kind": "values", "aten_kernel": kernel}}
    found = {**report("eager_wrong"), "culprit": culprit}
    shown = build_issue_script(BATCH_NORM, choose_script(BATCH_NORM, found), found)
    script = shown["eager_only"]
    assert "torch.ops.aten.native_batch_norm_backward" in script and "torch.compile" not in script
    assert len(list(filter(None, script.splitlines()))) <= 10 and shown["eager_is_wrong"] and "ladder" not in shown
    assert shown["eager_only_output"].startswith("AssertionError: Tensor-likes are not close!")


@pytest.mark.parametrize("strided", [False, True])
def test_a_backward_kernel_is_held_against_its_formula_or_contiguous_copies(strided):
    """A fault of every layout, and one of strided gradients alone."""
    planted = WRONG_IN_EVERY_LAYOUT.format(
        operator="silu_backward",
        call="F.silu(x.t() if STRIDED else x).t()" if strided else "F.silu(x)",
        wrong="args[0] * args[1].sigmoid() * (1 if args[1].is_contiguous() else 2)" if strided else "args[0] * 2",
    )
    planted = f"BACKWARD = True\nSTRIDED = {strided}\n{planted}".replace("(2, 3),)", "(2, 3, requires_grad=True),)")
    script = find_wrong_kernel(planted, "aten.silu_backward.default")["scripts"][0]
    expected = "op(*contiguous)" if strided else "expected = grad_output * (1 / (1 + numpy.exp(-x))"
    assert expected in script and "torch.compile" not in script
    assert "AssertionError" in run_alone(planted[: planted.index("def make")] + script).output
    assert run_alone(script).status == 0


def test_a_kernel_that_misreads_a_layout_is_called_on_its_own():
    answer = find_wrong_kernel(WRONG_KERNEL)
    assert answer["operator"] == "aten.erfinv.default"
    script = answer["scripts"][0]
    assert "x = torch.rand(2, 3).transpose(0, 1)\n" in script and "op = torch.ops.aten.erfinv\n" in script
    registered = WRONG_KERNEL[: WRONG_KERNEL.index("def program")]
    assert "AssertionError" in run_alone(registered + script).output
    assert run_alone(script).status == 0


@pytest.mark.skipif(not torch.__version__.startswith(("2.13.", "2.15.")), reason="the kernel of these torches")
def test_a_kernel_that_the_compiler_calls_too_is_held_against_contiguous_inputs(write_case):
    """The compiled program, and float64, read the median of an expanded tensor from the same wrong places."""
    source = """import torch

def program(x):
    return torch.median(x, 0).values

def make():
    return program, (torch.arange(60.0).view(20, 3)[4:5].expand(4, 3),)

PATH = "eager"
"""
    found = triage(load_case(write_case(source)), torch.device("cpu"), JudgeTask()).to_json()
    answer = run_alone(build_reproducer(source, found))
    assert (found["verdict"], answer.status) == ("eager_wrong", 1)
    assert "BUG: eager is wrong" in answer.output
