"""Eager mode alone (``PATH = "eager"``): kernels that are wrong are named without a compile, right ones are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from plants.mended import override
from plants.sides import FAULTS, SharedFault, eager_fault, is_strided, write_program

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.report.verdict_text import meaning

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture
def judged(write_case) -> Callable[..., ReportJson]:
    def judge(body: str, *, against: str = "eager", **how) -> ReportJson:
        source = write_program(body, **how) + '\n\nPATH = "eager"\n'
        return triage(load_case(write_case(source)), CPU, JudgeTask(against=against)).to_json()

    return judge


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_named_and_without_it_there_is_none(judged, fault: SharedFault):
    clean = judged(fault.body, backward=fault.backward)
    assert clean["verdict"] in ("equal", "rounding") and clean["cost"]["compiles"] == 0, clean["detail"]
    with eager_fault(fault.operator):
        report = judged(fault.body, backward=fault.backward)
    assert (report["verdict"], report["wrong"], report["culprit"]["rewrite"]) == ("eager_wrong", "eager", str(fault))
    assert report["signature"] == f"aten:-:{fault.operator._opname}" and report["severity"] == "silent"
    assert report["evidence"]["path"] == "eager" and "compiled" not in meaning(report)
    worst = max(report["evidence"]["outputs"], key=lambda output: output["max_abs_error_eager"])
    assert worst["max_abs_error_eager"] > 10 * worst["max_abs_error_compiled"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_fault_in_the_programs_own_dtype_alone_is_found(judged, dtype: str):
    # Of bfloat16, 5 % are within what rounding allows two operators.
    with eager_fault(aten.gelu.default, lambda y: y * 1.5, only=lambda x, *_, **__: x.dtype is getattr(torch, dtype)):
        report = judged("F.gelu(x) * 2", dtype=dtype)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten.gelu.default")
    assert "contradicts itself in float64" in report["detail"] and report["workaround"] is None


def test_a_fault_of_a_layout_has_a_workaround(judged):
    with eager_fault(aten.exp.default, only=is_strided):
        report = judged("torch.exp(x.mT)")
        assert judged("torch.exp(x)")["verdict"] == "equal"
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "layout"
    assert "contiguous" in report["workaround"]["how"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_of_long_sums_is_no_fault(judged, dtype: str):
    for body in ("(x * 30).sum()", "torch.softmax(x, -1).cumsum(-1)", "F.layer_norm(x, (8,), w)", "x @ x.mT"):
        report = judged(body, dtype=dtype, shape=(512, 8), backward=True)
        assert report["verdict"] in ("equal", "rounding"), (body, report["detail"])


def test_nothing_else_can_be_compared_with(judged):
    with pytest.raises(UsageError, match="runs in eager mode alone"):
        judged("x", against="float64")


@pytest.fixture
def judged_case(write_case) -> Callable[[str], ReportJson]:
    def judge(text: str) -> ReportJson:
        return triage(load_case(write_case(text + '\n\nPATH = "eager"\n')), CPU, JudgeTask()).to_json()

    return judge


COMPLEX = """
import torch
BACKWARD = True
def make():
    torch.manual_seed(0)
    return torch.logdet, (torch.randn(65, 65, dtype=torch.complex64, requires_grad=True),)
"""
MEDIAN = """
import torch
def make():
    return lambda x: torch.{name}(x, 0).values, (torch.arange(60.0).view(20, 3)[4:5].expand(4, 3),)
"""


def test_rounding_of_complex_arguments_is_no_fault(judged_case):
    report = judged_case(COMPLEX)
    assert report["verdict"] in ("equal", "rounding"), report["detail"]


@pytest.mark.skipif(not torch.__version__.startswith(("2.13.", "2.15.")), reason="the kernel of these torches")
@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_a_median_along_an_expanded_dimension_is_read_from_memory_beside_it(judged_case, name: str):
    """A kernel of ATen that a sweep found: with a stride of 0 it reads past the row."""
    report = judged_case(MEDIAN.format(name=name))
    assert (report["verdict"], report["wrong"], report["culprit"]["rewrite"]) == (
        "eager_wrong", "eager", f"aten.{name}.dim",
    )  # fmt: skip
    assert "contiguous" in str(report["workaround"])


@pytest.mark.parametrize("path", ["eager", "compile"])
def test_a_kernel_that_differs_from_run_to_run_by_its_operands_layout_is_named(write_case, path: str):
    runs = itertools.count(1)
    source = write_program("torch.expm1(x.mT) + x.mT.sin()") + f'\n\nPATH = "{path}"\n'
    with eager_fault(aten.expm1.default, lambda y: y * next(runs), only=is_strided):
        report = triage(load_case(write_case(source)), CPU, JudgeTask()).to_json()
    assert (report["verdict"], report["wrong"], report["culprit"]["rewrite"]) == (
        "eager_wrong", "eager", "aten.expm1.default",
    )  # fmt: skip
    assert "contiguous self" in report["workaround"]["how"] and report["culprit"]["necessary"]


def test_a_kernel_that_differs_from_run_to_run_in_any_layout_is_unstable(judged):
    runs = itertools.count(1)
    with eager_fault(aten.expm1.default, lambda y: y * (1 + next(runs) % 7)):
        report = judged("torch.expm1(x.mT)")
    assert report["verdict"] != "equal" and not report["evidence"]["eager_deterministic"]
    assert "repeats itself" not in report["detail"]


@pytest.mark.slow  # by chance, what lies there leaves the median as it is
@pytest.mark.skipif(not torch.__version__.startswith(("2.13.", "2.15.")), reason="the kernel of these torches")
def test_a_kernel_that_reads_beyond_its_operands_storage_is_named(judged_case):
    """What lies there is another thing in each run, and may be the same in two; the compiler calls the same kernel."""
    report = judged_case(MEDIAN.format(name="median").replace("[4:5]", "[19:20]"))
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("eager_wrong", "aten.median.dim")


# pytorch#197888: backward kernels of max pooling on the CPU take indices that are channels last for contiguous ones.
# Autograd gives them none in eager mode, so that the program calls the operator itself.
POOLED = """
import torch
aten = torch.ops.aten
def make():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4, 4)
    out, indices = aten.adaptive_max_pool3d(x, [2, 2, 2])
    indices = indices.to(memory_format=torch.channels_last_3d)
    return lambda *given: aten.adaptive_max_pool3d_backward(*given), (torch.randn_like(out), x, indices)
"""
# The kernel for two dimensions reads them as they are: the fault is planted, for what autograd saves.
POOLED_FLAT = """
import torch
import torch.nn.functional as F
BACKWARD = True
def make():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    return lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), (x.requires_grad_(),)
"""


def _check_misread_indices(report: ReportJson, operator: str) -> None:
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("aten", operator)
    assert (kernel["about"], kernel["misreads"]) == ("layout", ["indices"])
    assert "a contiguous indices" in report["workaround"]["how"] and report["workaround"]["verified"]


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_a_backward_kernel_of_pooling_that_misreads_its_indices_is_named(judged_case):
    _check_misread_indices(judged_case(POOLED), "aten.adaptive_max_pool3d_backward.default")


def test_the_same_fault_is_named_where_autograd_calls_the_kernel(judged_case):
    def misread(kernel: Callable[..., object], grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> object:
        return kernel(grad, x, indices.as_strided(indices.shape, grad.contiguous().stride()))

    assert judged_case(POOLED_FLAT)["verdict"] in ("equal", "rounding")
    with override(aten.adaptive_max_pool2d_backward.default, "CPU", misread):
        report = judged_case(POOLED_FLAT)
    _check_misread_indices(report, "aten.adaptive_max_pool2d_backward.default")
