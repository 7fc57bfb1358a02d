"""Gradients of eager mode alone: a formula that is wrong is named, and no gradient that is meant to be otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from plants.mended import override
from plants.sides import eager_fault, gradient_fault, write_program

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

aten = torch.ops.aten


@pytest.fixture
def judged(write_case) -> Callable[[str], ReportJson]:
    def judge(text: str) -> ReportJson:
        source = text + '\n\nPATH = "eager"\n'
        return triage(load_case(write_case(source)), torch.device("cpu"), JudgeTask()).to_json()

    return judge


PLANTS = {
    "one operand": (aten.expm1.default, 0, "torch.expm1(x)"),
    "the second operand": (aten.linalg_cross.default, 1, "torch.linalg.cross(x[:, :3].sin(), x[:, 5:])"),
    "inside": (aten.logit.default, 0, "torch.softmax(torch.logit(torch.sigmoid(x) * 0.9, 1e-3) @ w, -1)"),
    "one of two results": (aten.kthvalue.default, 0, "torch.kthvalue(x, 2).values * 2"),
    "of two paths": (aten.digamma.default, 0, "torch.digamma(x.exp()) + x.sin()"),
    "an index": (aten.take.default, 0, "torch.take(x, torch.tensor([[1, 3, 3], [5, 0, 1]]))"),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_wrong_formula_is_named_and_proved(judged, plant):
    operator, argument, body = plant
    program = write_program(body, backward=True)
    assert judged(program)["verdict"] in ("equal", "rounding")
    with gradient_fault(operator, argument):
        report = judged(program)
    assert (report["verdict"], report["wrong"], report["culprit"]["rewrite"]) == ("eager_wrong", "eager", str(operator))
    assert report["culprit"]["necessary"] and report["confidence"] == "high", report["detail"]
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "gradient"
    worst = max(report["evidence"]["outputs"], key=lambda output: output["max_abs_error_eager"])
    assert worst["name"].startswith("gradient of")
    assert worst["max_abs_error_eager"] > 100 * worst["max_abs_error_compiled"]


def test_a_wrong_formula_of_complex_numbers_is_named(judged):
    with gradient_fault(aten.reciprocal.default):
        report = judged(write_program("torch.reciprocal(x)", backward=True, dtype="complex64"))
    assert report["culprit"]["rewrite"] == "aten.reciprocal.default"


def test_a_backward_kernel_that_is_wrong_on_complex_numbers_is_told_from_its_decomposition(judged):
    with eager_fault(aten.tanh_backward.default):
        report = judged(write_program("torch.tanh(x)", backward=True, dtype="complex64"))
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten.tanh_backward.default")


def test_a_fault_of_a_short_dtype_is_found_in_float64(judged):
    with gradient_fault(aten.expm1.default, factor=1.5):
        report = judged(write_program("torch.expm1(x)", backward=True, dtype="bfloat16"))
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten.expm1.default")


def compute_without_gradient(_: object, x: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return aten.expm1.default(x)


def test_an_operator_that_gives_no_gradient_is_named_where_one_by_differences_repairs_the_program(judged):
    with override(aten.expm1.default, "AutogradCPU", compute_without_gradient):
        report = judged(write_program("torch.expm1(x) + x.sin()", backward=True))
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == "aten.expm1.default" and report["culprit"]["necessary"]


@pytest.mark.parametrize(
    "body",
    ["torch.tanh(x).detach() * x", "torch.special.bessel_j0(x.detach()) * x", "F.layer_norm(x, (8,)).detach() * x"],
)
def test_a_gradient_that_the_program_withholds_is_no_operators_fault(judged, body: str):
    assert judged(write_program(body, backward=True))["is_bug"] is False


@pytest.mark.slow
def test_what_lacks_a_gradient_and_cannot_be_given_one_is_not_accused(judged):
    body = "F.layer_norm(torch.cat([x] * 2000).detach() * x.mean(), (8,)).sin() + torch.tanh(x).detach().mean()"
    assert judged(write_program(body, backward=True))["is_bug"] is False


# Gradients at kinks and ties, at steps, and where a value has no unique derivative.
BODIES = (
    "F.relu(x * 0) + F.relu(x)",
    "(x * 0).abs()",
    "torch.maximum(x, x.detach() * 0 + x)",
    "x.clamp(-0.5, x.max().item())",
    "x.floor() * x",
    "torch.round(x * 3)",
    "F.hardshrink(x)",
    "torch.sgn(x)",
    "torch.sort(x.round(), -1).values",
    "torch.median(x.round())",
    "x.amax(-1) + (x * 0).amax()",
    "torch.topk((x * 0), 2).values",
    "torch.trunc(x) + x.frac()",
    "torch.remainder(x, 0.5) + torch.fmod(x, w)",
    "(x * 0).norm()",
    "torch.cdist(x, x)",
    "F.threshold(x, 0.0, 0.0)",
)
# Differences say nothing: a result that no step changes in float64, factors of a singular matrix.
BEYOND = ("torch.erf(x * 0.01 + 9)", "torch.linalg.qr(x[:1, :2].expand(5, 2))[0]")
# The gradient is meant to be another one.
MEANT = (
    "x + (x.round() - x).detach()",
    "x.detach() * x",
    "torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)",
    "F.ctc_loss(x.view(4, 1, 8).expand(4, 2, 8), torch.tensor([[1, 2], [3, 4]]), [4, 4], [2, 2])",
    "F.embedding(torch.tensor([0, 1, 1]), x, padding_idx=1)",
    "F.embedding(torch.tensor([0, 1, 1]), x, scale_grad_by_freq=True)",
    "torch.scatter(x, 0, torch.zeros(4, 8, dtype=torch.long), x.sin())",
)
# Factors of matrices: conventions and gauges.
FACTORS = (
    "torch.linalg.cholesky(x[:, :4] * 0.1 + torch.eye(4) * 3)", "torch.linalg.eigh(x[:, :4])[1]",
    "torch.linalg.svd(x, full_matrices=False)[0]", "torch.linalg.qr(x)[0]", "torch.linalg.lu_factor(x[:, :4])[0]",
    "torch.linalg.det(x[:, :4])", "torch.linalg.eigvals(x[:, :4])", "torch.linalg.pinv(x[:, :4], hermitian=True)",
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES + BEYOND + MEANT + FACTORS)
def test_gradients_that_are_meant_so_are_no_fault(judged, body: str):
    report = judged(write_program(body, backward=True))
    assert report["verdict"] in ("equal", "rounding"), report["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "x.abs()",
        "torch.angle(x)",
        "torch.fft.fft(x).real",
        "x.sgn()",
        "x * x.conj() + w",
        "x.real",
        "torch.tanh(x)",
        "torch.sigmoid(x)",
    ],
)
def test_complex_gradients_follow_torchs_convention(judged, body: str):
    report = judged(write_program(body, backward=True, dtype="complex64"))
    assert report["verdict"] in ("equal", "rounding"), report["detail"]


OWN = """
import torch
BACKWARD = True
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()
    @staticmethod
    def backward(ctx, gradient):
        return gradient
def program(x, y):
    x.register_hook(lambda gradient: gradient * 3)
    return Own.apply(x) * y, y.expand(3, 5).cumsum(0)
def make():
    torch.manual_seed(0)
    return program, (torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True))
"""
LEAVES = """
import torch
BACKWARD = True
def make():
    torch.manual_seed(0)
    x = torch.randn(1, 5).expand(3, 5).requires_grad_()
    w = torch.randn(8)
    return lambda x, a, b: torch.expm1(x).sum(0) * a + b, (x, w[:5].requires_grad_(), w[3:].requires_grad_())
"""


@pytest.mark.parametrize("text", [OWN, LEAVES])
def test_functions_and_hooks_of_the_users_own_and_overlapping_inputs_are_no_fault(judged, text: str):
    report = judged(text)
    assert report["verdict"] in ("equal", "rounding"), report["detail"]


def test_the_gradient_of_an_expanded_input_is_checked(judged):
    text = LEAVES.replace("w[3:].requires_grad_()", "torch.randn(5, requires_grad=True)")
    with gradient_fault(aten.expm1.default):
        report = judged(text)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten.expm1.default")


def test_an_operator_that_contradicts_itself_in_float64_alone_is_no_fault_of_a_short_dtype(judged):
    # The index 22 * 52 / 88 is 13; rounded in float32 it is 12, there and in float64's backward.
    body = 'F.interpolate(x[:, None, :], size=88, mode="nearest")'
    for dtype in ("float32", "bfloat16"):
        report = judged(write_program(body, backward=True, dtype=dtype, shape=(2, 52)))
        assert "its own gradient" not in report["detail"], (dtype, report["detail"])


NARROW = """
import torch
BACKWARD = True
def make():
    x = torch.arange(10.0).view(1, 1, 10, 1).requires_grad_()
    return lambda x: torch.nn.functional.interpolate(x, size=(8, 1), mode="bilinear", antialias=True), (x,)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_a_kernel_that_is_wrong_forward_alone_is_found_by_its_gradient(judged):
    """A kernel of ATen that the sweep found: of an image one column wide, each row is the first."""
    report = judged(NARROW)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten._upsample_bilinear2d_aa.default")
