"""What compiling raises because it traces a backward that eager refuses as well is no bug; another error is one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._functorch._aot_autograd import runtime_wrappers
from torch._inductor import lowering

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

OVERWRITTEN = """
import torch

GRAD = "enabled"

def program(x):
    y = x.sigmoid()
    out = y * 2
    y += 1
    return out + y

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4, requires_grad=True),)
"""
DETACHED = """
import torch

BACKWARD = True

def program(x):
    return x * 2, torch.exp(x.detach())

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4, requires_grad=True),)
"""
RIGHT = OVERWRITTEN.replace("y += 1", "y = y + 1")


@contextlib.contextmanager
def raising():
    table, kept = lowering.lowerings, lowering.lowerings[torch.ops.aten.sigmoid.default]

    def planted(*args, **kwargs):
        raise RuntimeError("one of the variables needed for gradient computation: planted")

    table[torch.ops.aten.sigmoid.default] = planted
    try:
        yield
    finally:
        table[torch.ops.aten.sigmoid.default] = kept


@pytest.mark.parametrize(
    ("source", "plant", "verdict"),
    [(OVERWRITTEN, contextlib.nullcontext, "invalid"), (RIGHT, raising, "compile_error")],
)
def test_the_error_of_a_backward(source: str, plant: Callable, verdict: str, write_case: Callable[..., Path]):
    with plant():
        report = triage(load_case(write_case(source)), torch.device("cpu"))
    assert str(report.verdict) == verdict
    assert ("in backward" in report.detail) is (verdict == "invalid")


def test_an_output_that_requires_gradients_when_compiled_alone_is_told(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    case = load_case(write_case(DETACHED))
    assert str(triage(case, torch.device("cpu")).verdict) in ("equal", "rounding")
    monkeypatch.setattr(torch.autograd.function.FunctionCtx, "mark_non_differentiable", lambda *values: None)
    report = triage(case, torch.device("cpu")).to_json()
    (wrong,) = [output for output in report["evidence"]["outputs"] if output["finding"] == "requires_grad"]
    assert (report["verdict"], wrong["name"]) == ("metadata", "out1")
    assert "eager False" in wrong["detail"] and "compiled True" in wrong["detail"]
    assert report["culprit"]["rewrite"] == "AOTDispatchAutograd.post_compile" and report["confidence"] == "low"


WRITTEN = """
import torch

BACKWARD = True

def program(y):
    y.mul_(2)
    return y.sin()

def run(model, inputs):
    y = inputs[0] * 1
    return model(y) * 5 + y

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, requires_grad=True),)
"""


@pytest.mark.slow
def test_gradients_that_reach_backward_in_another_order_are_the_runtimes(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    made: Callable[..., Callable[..., object]] = runtime_wrappers._codegen_backward_prologue

    def make(*given: object) -> Callable[..., object]:
        run = made(*given)
        return lambda tensors, sizes, objects, gradients: run(tensors, sizes, objects, [*gradients][::-1])

    monkeypatch.setattr(runtime_wrappers, "_codegen_backward_prologue", make)
    report = triage(load_case(write_case(WRITTEN)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["confidence"]) == ("wrong_gradient", "low")
    assert report["culprit"]["rewrite"] == "AOTDispatchAutograd.post_compile"


@pytest.mark.slow
def test_a_tangent_of_another_layout_than_traced_is_named(
    monkeypatch: pytest.MonkeyPatch, write_case: Callable[..., Path]
):
    monkeypatch.setattr(runtime_wrappers, "coerce_to_expected_memory_format", lambda tangent, layout: tangent)
    source = WRITTEN.replace("    y.mul_(2)\n", "").replace("y.sin()", "y.reshape(2, 2).sin()")
    source = source.replace(" * 5 + y", ".sum(0)")
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert report["is_bug"] and report["confidence"] == "low"
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", "coerce_to_expected_memory_format")
    assert culprit["details"]["expected"].endswith("strides (2, 1)") and "strides (0, " in culprit["details"]["got"]


@pytest.mark.slow
def test_a_package_that_computes_no_gradients_owes_none(write_case: Callable[..., Path]):
    source = DETACHED.replace("BACKWARD = True", 'GRAD = "enabled"\nPATH = "aoti"')
    report = triage(load_case(write_case(source)), torch.device("cpu"))
    assert str(report.verdict) in ("equal", "rounding")


DETACHED_BESIDE = """
import torch

BACKWARD = True


def program(x):
    y = torch.cat([x, x]) * 2
    return y[:2], y[2:], y.detach()


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, requires_grad=True),)
"""


def test_outputs_that_lose_their_gradient_are_a_wrong_gradient_and_no_error_of_the_program(write_case):
    """Of several outputs that share a graph, too, those that a gradient comes from are looked for."""
    report = triage(load_case(write_case(DETACHED_BESIDE)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["severity"]) == ("wrong_gradient", "silent")
    assert report["culprit"]["necessary"]
