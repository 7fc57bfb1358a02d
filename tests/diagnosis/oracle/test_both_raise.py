"""Eager and compiled both raise: a refusal of the program in other words, or an error of the compiler's own."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import _meta_registrations
from torch._dynamo.variables import builtin
from torch._inductor import lowering
from torch._subclasses import fake_tensor

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.report.verdict_text import meaning

SOURCE = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x, i: {body}), (torch.randn(4), torch.tensor([{index}]))
"""


def slip(*args: object, **kwargs: object) -> object:
    return {}["nothing"]


@pytest.fixture
def judged(write_case):
    def judge(body: str, index: int = 7):
        path = write_case(SOURCE.format(body=body, index=index))
        return triage(load_case(path), torch.device("cpu")).to_json()

    return judge


@pytest.mark.parametrize(
    "body", ["torch.sinh(x)[i]", "torch.mm(x, x)", "torch.cat([x, x[None]]).sinh()", "torch.complex(x, i)"]
)
def test_a_program_that_both_refuse_is_invalid(judged, body):
    report = judged(body)
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)
    assert "eager raises" in report["detail"]


@pytest.mark.parametrize("path", ["export", "aoti"])
def test_a_refusal_that_the_compiler_hands_on_from_a_module_of_its_own_is_none_of_its_errors(write_case, path):
    """The operator refuses its arguments in eager mode, and while AOTAutograd traces what calls it."""
    body = "torch.nn.functional.adaptive_avg_pool3d(x.new_ones(1, 2, 3, 4), output_size=())"
    source = f"PATH = {path!r}\n" + SOURCE.format(body=body, index=0)
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)


@pytest.mark.parametrize(("message", "verdict"), [("an integer is no index", "invalid"), ("", "compile_error")])
def test_an_assertion_about_arguments_refuses_them_if_it_says_so(judged, message: str, verdict: str):
    def check(dtype: torch.dtype) -> torch.dtype:
        raise AssertionError(*filter(None, [message]))

    with mock.patch.object(_meta_registrations, "corresponding_complex_dtype", check):
        assert judged("torch.complex(x, torch.ones(3))")["verdict"] == verdict


def test_a_lowering_that_fails_by_itself_is_a_bug_whatever_eager_raises(judged):
    with mock.patch.dict(lowering.lowerings, {torch.ops.aten.sinh.default: slip}):
        report = judged("torch.sinh(x)[i]")
    assert (report["verdict"], report["is_bug"]) == ("compile_error", True)
    assert "KeyError" in report["detail"] and "IndexError" in report["detail"]
    assert "eager raises another" in meaning(report)
    assert (report["culprit"]["stage"], report["culprit"]["family"]) == ("lowering", "sinh")


def test_a_shape_function_that_slips_is_a_bug_too(judged):
    with mock.patch.object(fake_tensor.FakeTensorMode, "_dispatch_impl", slip):
        assert judged("torch.mm(x, x)")["verdict"] == "compile_error"


def test_what_dynamo_calls_an_error_of_its_own_is_one(judged):
    def misuse(*args: object, **kwargs: object) -> int:
        return len(3)  # type: ignore[arg-type]

    with mock.patch.object(builtin.BuiltinVariable, "call_function", misuse):
        report = judged("torch.mm(x, x) if len(x.shape) else x")
    assert (report["verdict"], report["is_bug"]) == ("compile_error", True)


# The message names the operator that gave the tensor: another one, where AOTAutograd traces the backward pass.
OVERWRITTEN = """
import torch
def program(a, b):
    b.add_(1.0)
    return a.sin() * b, a.detach().add_(1)
def run(model, inputs):
    a = inputs[0] * 1
    b = inputs[1] * 1
    return model(a, b), a, b
def make():
    torch.manual_seed(0)
    return program, (torch.randn(6, requires_grad=True),torch.randn(6, requires_grad=True))
BACKWARD = True
"""


def test_a_refusal_that_names_another_operator_is_the_same(write_case):
    report = triage(load_case(write_case(OVERWRITTEN)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["is_bug"]) == ("invalid", False)
