"""Who is wrong, where values part: kernels of eager mode at fault, faults of the compiler in the same operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from eager_plants import eager_fault, is_strided, scaled
from torch._inductor import decomposition, lowering

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten
CPU = torch.device("cpu")

SOURCE = """
import torch
import torch.nn.functional as F

BACKWARD = {backward}


def make():
    torch.manual_seed(0)

    def program(x, w):
        return {body}

    return program, tuple(torch.randn(shape, dtype=torch.{dtype}, requires_grad={backward}) for shape in ({shape}, 8))
"""


@pytest.fixture
def judged(write_case) -> Callable[..., ReportJson]:
    def judge(
        body: str, *, backward: bool = False, dtype: str = "float32", shape: tuple[int, ...] = (4, 8)
    ) -> ReportJson:
        case = write_case(SOURCE.format(body=body, backward=backward, dtype=dtype, shape=shape))
        return triage(load_case(case), CPU).to_json()

    return judge


# By the opinion that tells: a formula, the operator's derivative, differences of the forward pass.
FAULTS: list[Any] = [
    (aten.gelu.default, "F.gelu(x) * 2", False),
    (aten.elu.default, "F.elu(x)", False),
    (aten.hardswish_backward.default, "F.hardswish(x * 4)", True),
    *(
        pytest.param(*fault, marks=pytest.mark.slow)
        for fault in (
            (aten._softmax.default, "torch.softmax(x, -1) + 1", False),
            (aten.native_layer_norm.default, "F.layer_norm(x, (8,))", False),
            (aten.native_layer_norm_backward.default, "F.layer_norm(x, (8,), w)", True),
            (aten.exp.default, "torch.exp(x)", False),
            (aten.silu_backward.default, "F.silu(x)", True),
            (aten.var.correction, "x.var(-1)", False),
            (aten.softplus.default, "F.softplus(x)", True),
            (aten.logaddexp.default, "torch.logaddexp(x, x * 2)", False),
            (aten.glu.default, "F.glu(x)", True),
        )
    ),
]


@pytest.mark.parametrize(("operator", "body", "backward"), FAULTS, ids=str)
def test_a_kernel_of_eager_mode_is_named(judged, operator, body: str, backward: bool):
    with eager_fault(operator, scaled):
        report = judged(body, backward=backward)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["stage"] == "aten" and report["culprit"]["rewrite"] == str(operator)
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "values"
    assert report["signature"] == f"aten:-:{operator._opname}" and report["severity"] == "silent"


@contextlib.contextmanager
def compiler_fault(operator: torch._ops.OpOverload) -> Iterator[str]:
    """A decomposition that everybody shares, or a lowering, that is wrong as the kernel above is."""
    table = torch._decomp.decomposition_table
    with contextlib.ExitStack() as stack:
        if operator in decomposition.decompositions:
            right = decomposition.decompositions[operator]

            def decomposed(*args: object, **kwargs: object) -> object:
                result = right(*args, **kwargs)
                return result if result is NotImplemented else scaled(result)

            tables = [decomposition.decompositions, *([table] if operator in table else [])]
            for each in tables:
                stack.enter_context(mock.patch.dict(each, {operator: decomposed}))
            yield "decomposition"
        else:
            kernel = lowering.lowerings[operator]

            def lowered(*args: object, **kwargs: object) -> object:
                result = kernel(*args, **kwargs)
                return lowering.mul(result, 2 if not result.get_dtype().is_floating_point else 1.05)

            stack.enter_context(mock.patch.dict(lowering.lowerings, {operator: lowered}))
            yield "lowering"


@pytest.mark.parametrize(("operator", "body", "backward"), FAULTS, ids=str)
def test_the_same_fault_of_the_compiler_is_the_compilers(judged, operator, body: str, backward: bool):
    with compiler_fault(operator) as stage:
        report = judged(body, backward=backward)
    assert (report["wrong"], report["confidence"]) == ("compiled", "high")
    assert report["verdict"] == ("wrong_gradient" if operator._opname.endswith("backward") else "miscompile")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == (stage, str(operator))


def test_a_kernel_that_is_wrong_on_one_layout_alone_is_told_as_such(judged):
    with eager_fault(aten.tanh.default, scaled, only=is_strided):
        report = judged("torch.tanh(x.t())")
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert (report["verdict"], kernel["about"], kernel["wrong_in"]) == ("eager_wrong", "layout", "eager")
    assert kernel["inputs"][0]["stride"] == [1, 8]


def test_both_sides_may_be_wrong(judged):
    with eager_fault(aten.tanh.default, scaled), compiler_fault(aten.exp.default):
        report = judged("torch.tanh(x) + torch.exp(x)")
    assert (report["wrong"], report["confidence"]) == ("both", "low")
    assert "aten.tanh.default" in report["detail"] and "all the same" in report["detail"]


@pytest.mark.parametrize("fault", [eager_fault, compiler_fault], ids=["eager", "compiler"])
def test_what_nothing_tells_is_undecided(judged, fault):
    """A function of whole numbers has no derivative, and this one neither formula nor decomposition."""
    changes = (lambda result: result + 1,) if fault is eager_fault else ()
    with fault(aten.bitwise_left_shift.Tensor, *changes):
        report = judged("torch.bitwise_left_shift((x * 9).long().abs(), (w * 2).long().abs())")
    assert (report["wrong"], report["confidence"]) == ("undecided", "low")
    assert "aten.bitwise_left_shift.Tensor itself" in report["detail"]


# pytorch#197888 and the batch norm of this torch: kernels of ATen that are wrong on layouts.
NORM = "F.batch_norm(x, None, None, w[:2], w[2:4], training=True)"
SPELLINGS = (f"{NORM}.squeeze(-1).transpose(1, 2)", f"{NORM}.squeeze(3).mT")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
@pytest.mark.parametrize("body", SPELLINGS)
@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float64", "bfloat16"))]
)
def test_batch_norms_backward_is_wrong_on_a_transposed_gradient(judged, dtype: str, body: str):
    report = judged(body, backward=True, dtype=dtype, shape=(3, 2, 4, 1))
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == "aten.native_batch_norm_backward.default"
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "layout"


def test_an_error_says_for_itself_whose_it_is(judged):
    with mock.patch.dict(lowering.lowerings, {aten.exp.default: lambda x: 1 / 0}):
        report = judged("torch.exp(x)")
    assert report["verdict"] == "compile_error" and report["wrong"] is None
