"""Who is wrong, where values part: kernels of eager mode at fault, faults of the compiler in the same operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from plants.mended import FAULTS as MENDED
from plants.mended import MendedFault
from plants.sides import FAULTS, SharedFault, compiler_fault, eager_fault, is_strided, scaled, write_program
from torch._dynamo.variables import ctx_manager
from torch._inductor import decomposition as inductor_decomposition
from torch._inductor import lowering

from fuzzcompile.compiler.operators.second_reference import ContestedCall, PartedOpinion, SecondReference
from fuzzcompile.diagnosis import wrong_side
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.wrong_side import find_wrong_side
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.reference.formulas import FORMULAS

aten = torch.ops.aten
CPU = torch.device("cpu")
# By the opinion that tells: a formula, the operator's derivative, differences of the forward pass.
QUICK = (aten.gelu.default, aten.elu.default, aten.hardswish_backward.default)
each_fault = pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=() if each.operator in QUICK else pytest.mark.slow) for each in FAULTS], ids=str
)


@pytest.fixture
def judged(write_case) -> Callable[..., ReportJson]:
    return lambda body, **how: triage(load_case(write_case(write_program(body, **how))), CPU).to_json()


@each_fault
def test_a_kernel_of_eager_mode_is_named(judged, fault: SharedFault):
    with eager_fault(fault.operator):
        report = judged(fault.body, backward=fault.backward)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("aten", str(fault))
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "values"
    assert report["workaround"]["how"].startswith("torch.compile(model)")
    assert report["signature"] == f"aten:-:{fault.operator._opname}" and report["severity"] == "silent"


@each_fault
def test_the_same_fault_of_the_compiler_is_the_compilers(judged, fault: SharedFault):
    with compiler_fault(fault.operator) as stage:
        report = judged(fault.body, backward=fault.backward)
    assert (report["wrong"], report["confidence"]) == ("compiled", "high")
    assert report["verdict"] == ("wrong_gradient" if "backward" in str(fault) else "miscompile")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == (stage, str(fault))


NESTED_MODES = """
import torch

BACKWARD = True

def program(x):
    with torch.no_grad():
        with torch.enable_grad():
            h = torch.tanh(x)
        target = torch.sigmoid(x)
    return (h - target) ** 2

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 5, requires_grad=True),)
"""


def test_a_kernel_that_is_wrong_in_a_short_dtype_alone_is_named(judged):
    with eager_fault(aten.maximum.default, torch.neg, only=lambda x, w: x.dtype is torch.bfloat16):
        report = judged("torch.maximum(x, w) * 2", dtype="bfloat16")
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == "aten.maximum.default"
    assert report["culprit"]["details"]["aten_kernel"]["about"] == "dtype", "in float64 it is right"


@pytest.fixture
def no_formula(monkeypatch):
    monkeypatch.delitem(FORMULAS, "avg_pool2d_backward")


@pytest.mark.slow
@pytest.mark.usefixtures("no_formula")
def test_a_wrong_backward_kernel_of_which_there_is_one_opinion_is_named(judged):
    with eager_fault(aten.avg_pool2d_backward.default):
        report = judged("F.avg_pool2d(x.view(1, 1, 4, 8), 2)", backward=True)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == "aten.avg_pool2d.default" and report["culprit"]["necessary"]


@pytest.mark.slow
def test_a_case_whose_values_do_not_part_never_runs_the_second_reference(judged, monkeypatch):
    def refuse(*args: object) -> None:
        raise AssertionError("the second reference was run")

    monkeypatch.setattr(wrong_side, "run_second", refuse)
    assert judged("torch.sigmoid(x) @ w", backward=True)["is_bug"] is False
    with compiler_fault(aten.sigmoid.default), pytest.raises(AssertionError, match="second reference was run"):
        judged("torch.sigmoid(x) @ w")


STEEP = "F.avg_pool2d(x.view(1, 1, 4, 8), 2) + (x * 1e9).floor().mean()"


@pytest.mark.usefixtures("no_formula")
@pytest.mark.slow
def test_where_differences_tell_nothing_a_backward_pass_that_is_not_linear_is_wrong(judged):
    with eager_fault(aten.avg_pool2d_backward.default, torch.abs):
        report = judged(STEEP, backward=True)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "low")
    assert "not the sum of those for two parts" in report["detail"], "that compiled is right, nothing shows"
    with compiler_fault(aten.avg_pool2d_backward.default):
        report = judged(STEEP, backward=True)
    assert (report["verdict"], report["wrong"]) == ("wrong_gradient", "compiled")


@pytest.mark.slow
def test_a_gradient_that_the_program_withholds_is_not_eagers_fault(write_case, monkeypatch):
    leave = ctx_manager.GradModeVariable.exit

    def stay(self, tx, *args):
        self.initial_values = [True]
        return leave(self, tx, *args)

    monkeypatch.setattr(ctx_manager.GradModeVariable, "exit", stay)
    report = triage(load_case(write_case(NESTED_MODES)), CPU).to_json()
    assert (report["verdict"], report["wrong"]) == ("wrong_gradient", "compiled")
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("end of set_grad_enabled", True)
    # Drafts say of a "mode" that eager mode without it agrees, which is of modes of the program's own.
    assert report["culprit"]["details"]["kind"] == "torch mode"


@pytest.mark.slow
def test_a_gradient_that_is_meant_to_be_another_is_not_eagers_fault(judged, monkeypatch):
    backward = aten.embedding_dense_backward.default
    table = inductor_decomposition.decompositions
    decompose = table[backward]
    monkeypatch.setitem(
        table, backward, lambda grad, indices, rows, pad, scale: decompose(grad, indices, rows, -1, scale)
    )
    body = "F.embedding(torch.tensor([0, 1, 1]), x, padding_idx=1)"
    report = judged(body, backward=True)
    assert (report["verdict"], report["wrong"]) == ("wrong_gradient", "compiled")
    assert report["culprit"]["rewrite"] == str(backward)


def test_a_kernel_that_is_wrong_on_one_layout_alone_is_told_as_such(judged):
    with eager_fault(aten.tanh.default, scaled, only=is_strided):
        report = judged("torch.tanh(x.t())")
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert (report["verdict"], kernel["about"], kernel["wrong_in"]) == ("eager_wrong", "layout", "eager")
    assert kernel["inputs"][0]["stride"] == [1, 8]
    assert kernel["misreads"] == ["self"]
    assert "x = x.contiguous()" in report["workaround"]["how"] and report["workaround"]["verified"]


@pytest.mark.parametrize(
    ("only", "size"),
    [
        pytest.param(lambda x: x.shape[-1] % 2, (5, [6]), id="a tail of a vector"),
        pytest.param(lambda x: x.numel() > 16, (8, [4]), id="a large one"),
        pytest.param(lambda x: bool((x > 0.5).any()), None, id="values"),
    ],
)
def test_a_kernel_that_is_wrong_on_one_size_alone_is_told_as_such(judged, only, size):
    shape = (4, 5) if size and size[0] == 5 else (4, 8)
    with eager_fault(aten.tanh.default, scaled, only=only):
        report = judged("torch.tanh(x)", shape=shape)
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert report["verdict"] == "eager_wrong"
    assert kernel["about"] == ("size" if size else "values")
    assert size is None or (kernel["size"], kernel["right_sizes"]) == size


@pytest.mark.slow
def test_both_sides_may_be_wrong(judged):
    with eager_fault(aten.tanh.default, scaled), compiler_fault(aten.exp.default):
        report = judged("torch.tanh(x) + torch.exp(x)")
    assert (report["wrong"], report["confidence"]) == ("both", "low")
    assert "aten.tanh.default" in report["detail"] and "all the same" in report["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [pytest.param(eager_fault, marks=pytest.mark.slow), compiler_fault], ids=["eager", "compiler"]
)
def test_what_nothing_tells_is_undecided(judged, fault):
    """A function of whole numbers has no derivative, and this one neither formula nor decomposition."""
    changes = (lambda result: result + 1,) if fault is eager_fault else ()
    with fault(aten.bitwise_left_shift.Tensor, *changes):
        report = judged("torch.bitwise_left_shift((x * 9).long().abs(), (w * 2).long().abs())")
    assert (report["wrong"], report["confidence"]) == ("undecided", "low")
    assert "aten.bitwise_left_shift.Tensor itself" in report["detail"]


SIDE = "compiled is said to be wrong"
TWO = "two references that share no kernel agree"


def list_side_notes(report: ReportJson) -> list[str]:
    return [note for note in report["evidence"]["notes"] if note.startswith(SIDE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("torch.exp(torch.special.bessel_j0(x))", marks=pytest.mark.slow),
        "torch.exp(F.layer_norm(torch.cummax(x, 0).values, (8,)))",
    ],
)
def test_values_that_depend_on_calls_with_one_opinion_are_not_those_of_two_references(judged, body: str):
    with compiler_fault(aten.exp.default):
        report = judged(body)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("miscompile", "compiled", "high")
    (note,) = list_side_notes(report)
    assert TWO not in note and "depends on 1 call that only eager's own kernels compute" in note
    assert "aten.special_bessel_j0.default" in note or "aten.cummax.default" in note


@pytest.mark.slow
def test_calls_with_one_opinion_on_which_nothing_that_parts_depends_are_named_beside_two_references(judged):
    with compiler_fault(aten.exp.default):
        report = judged("torch.exp(x), torch.special.bessel_j0(x), torch.special.bessel_j0(w)")
    (note,) = list_side_notes(report)
    assert TWO in note and "nothing that parts depends on 2 calls that only eager's own kernels compute" in note
    assert "2x aten.special_bessel_j0.default" in note


def test_where_each_call_has_two_opinions_there_is_nothing_to_say_of_them(judged):
    with compiler_fault(aten.exp.default):
        assert list_side_notes(judged("torch.exp(x) * torch.ones_like(x)")) == []


def test_a_call_that_is_too_large_to_be_computed_again_has_one_opinion():
    large, small = torch.ones(2**22 + 1), torch.ones(4)
    with SecondReference(native=torch.float32) as mode:
        (large.exp()[:4] + small.exp()).sum()
    assert list(mode.alone.values()) == [aten.exp.default]


def test_a_call_that_computes_nothing_needs_no_second_opinion():
    heads = torch.ones(2, 3, 4, 5, dtype=torch.float64)
    with SecondReference(native=torch.float32) as mode:
        heads @ heads.mT  # of more than three dimensions: products of a batch, in their shape by `_unsafe_view`
    assert not mode.alone


def test_differences_are_taken_around_zero_too():
    """A minimized program may have zeros alone for inputs."""
    doubled = PartedOpinion("decomposition", 1.0, compute=lambda x: 2 * x.tanh())
    assert ContestedCall(0, aten.tanh.default, ((torch.zeros(4),), {}), doubled).kernel_is_wrong is False


def find_mended(number: int) -> MendedFault:
    return next(fault for fault in MENDED if fault.number == number)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_an_attention_kernel_that_draws_nothing_is_held_against_contiguous_copies(write_case):
    fault = find_mended(187506)
    report = triage(load_case(write_case(fault.write_program())), CPU).to_json()
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == fault.operator


def test_a_kernel_is_held_against_the_composition_that_it_stands_for(write_case):
    """Autograd has no formula for it, so that differences of the forward pass tell, not its derivative."""
    fault = find_mended(175068)
    with fault.apart():
        report = triage(load_case(write_case(fault.write_program())), CPU).to_json()
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == fault.operator


def judge_alone(write_case, fault: MendedFault) -> ReportJson:
    with fault.install():
        return triage(load_case(write_case(fault.write_program() + '\n\nPATH = "eager"\n')), CPU).to_json()


# No other code has an opinion of the rank of a batch (187436), of a length (185812), of the dtype of a factorial
# (198006), of what an optimizer writes to (194664), or of derivatives that no operator has alone (184529, 186779,
# 191142, 192667); and float64 does not call the change of softshrink a fault (186358).
UNTOLD = (187436, 185812, 198006, 194664, 184529, 186779, 191142, 192667, 186358)
QUICKLY_TOLD = (171225, 175068, 181297, 183997, 184914, 188027, 189872)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault.number in QUICKLY_TOLD else pytest.mark.slow)
        for fault in MENDED
        if fault.number not in UNTOLD
    ],
    ids=str,
)
def test_faults_that_torch_has_mended_are_named_in_eager_mode_alone(write_case, fault: MendedFault):
    """Compiled code shares most of them."""
    if fault.plant is None and not torch.__version__.startswith("2.13."):
        pytest.skip("a fault of torch 2.13")
    report = judge_alone(write_case, fault)
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] in (fault.operator, fault.operator.replace("_backward", ""))


@pytest.mark.slow
def test_generated_code_that_loses_nan_beside_a_kernel_that_does_is_wrong_too(write_case):
    fault = find_mended(188027)
    with fault.install():
        report = triage(load_case(write_case(fault.write_program())), CPU).to_json()
    assert (report["wrong"], report["confidence"]) == ("both", "low")
    assert f"{fault.operator} contradicts its formula" in report["detail"]


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
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert (kernel["about"], kernel["misreads"]) == ("layout", ["grad_out"])
    assert "register_hook" in report["workaround"]["how"] and "its input" not in report["workaround"]["how"]


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_a_kernel_that_only_the_compiled_program_calls_on_a_layout_that_it_misreads_is_not_eagers_fault(judged):
    """pytorch#197888 as reported: the compiler lays out the saved indices as the input is, eager mode never does."""
    channels_last = "x.to(memory_format=torch.channels_last_3d)"
    report = judged(f"F.adaptive_max_pool3d({channels_last}, 2).cos()", backward=True, shape=(2, 3, 4, 4, 4))
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("wrong_gradient", "compiled", "high")
    assert report["culprit"]["rewrite"] == "aten.adaptive_max_pool3d_backward.default"
    kernel = report["culprit"]["details"]["aten_kernel"]
    assert (kernel["wrong_in"], kernel["inputs"][2]["stride"]) == ("compiled", [24, 1, 12, 6, 3])


def test_an_error_says_for_itself_whose_it_is(judged):
    with mock.patch.dict(lowering.lowerings, {aten.exp.default: lambda x: 1 / 0}):
        report = judged("torch.exp(x)")
    assert report["verdict"] == "compile_error" and report["wrong"] is None


MODULE = """
import torch
from torch import nn

BACKWARD = True

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(x).squeeze(-1).transpose(1, 2)

def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(2, 4, 3, 1, requires_grad=True),)
"""


@pytest.mark.slow
def test_a_kernel_that_gets_the_parameters_of_a_module_is_named_too(write_case):
    report = triage(load_case(write_case(MODULE)), CPU).to_json()
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert report["culprit"]["rewrite"] == "aten.native_batch_norm_backward.default"


def test_a_kernel_that_eager_repeats_by_chance_is_why_compiled_differs_from_compile_to_compile(write_case, monkeypatch):
    monkeypatch.setattr(Experiments, "is_deterministic", True)
    source = """
import torch
def make():
    return lambda x: torch.median(x, 0).values, (torch.arange(60.0).view(20, 3)[4:5].expand(4, 3),)
"""
    experiments = Experiments(load_case(write_case(source)), CPU)
    side = find_wrong_side(experiments, experiments.trial(), Decision(Verdict.NONDETERMINISTIC, "low"))
    assert side is not None and side.call is not None and side.call.operator is aten.median.dim


OWN_DERIVATIVE = """
import torch

BACKWARD = True

class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        return first * 3 if second is None else first + second

def make():
    torch.manual_seed(0)
    return lambda x: Halves.apply(x)[0] * 2, (torch.randn(4, requires_grad=True),)
"""


@pytest.mark.slow
def test_differences_say_nothing_of_a_derivative_that_the_program_defines(write_case):
    """Compiled code takes what has no gradient for zeros; neither gradient is that of the values."""
    report = triage(load_case(write_case(OWN_DERIVATIVE)), CPU).to_json()
    assert (report["verdict"], report["wrong"]) == ("wrong_gradient", "compiled")


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the kernel of this torch")
def test_where_rounding_decides_elsewhere_compiled_is_right_if_it_is_as_near_to_float64_as_repaired_eager_mode():
    """Gradients behind `x % -2.0` in float16 hang on rounding; those of batch norm do not."""
    report = triage(load_case(Path(__file__).with_name("unstable_batch_norm.py")), torch.device("cpu")).to_json()
    assert (report["verdict"], report["wrong"]) == ("eager_wrong", "eager")
    assert report["culprit"]["rewrite"] == "aten.native_batch_norm_backward.default"


PLACES = """
import torch

BACKWARD = True


def program(x):
    return {program}


def make():
    return program, (torch.full(({count},), {value}, requires_grad=True),)
"""


@pytest.mark.parametrize(
    ("program", "count", "value"),
    [
        ("torch.nn.functional.elu(x)", 19, "float('nan')"),  # NaN in the loop over vectors, 1 in the rest
        ("torch.nn.functional.hardswish(x) * torch.ones(40)[:19]", 19, "float('nan')"),
        ("torch.logit(x)", 3, "-0.0"),  # all of it is the rest
    ],
)
def test_a_kernel_that_contradicts_itself_in_another_place_of_a_tensor_is_at_fault(program, count, value, write_case):
    case = load_case(write_case(PLACES.format(program=program, count=count, value=value)))
    report = triage(case, torch.device("cpu")).to_json()
    assert report["verdict"] == "eager_wrong"
    assert "contradicts itself on the same elements in another place" in report["detail"]


@pytest.mark.parametrize(
    ("program", "others"),
    [
        ("torch.native_layer_norm(x, (6,), None, None, 1e-5)[1]", "0.0"),
        ("torch.std_mean(x, dim=1)[1]", "0.0"),
        ("torch.std_mean(x, dim=1)[1]", "torch.nan"),  # NaN in another row is not what it is about
    ],
)
def test_kernel_and_formula_that_part_on_an_infinity_accuse_nobody(program, others, write_case):
    """The mean of a row with an infinity is NaN in a kernel that adds to a running mean, and infinite by definition."""
    made = f"(torch.tensor([[torch.inf, 1.0, 2.0, 3.0, 4.0, 5.0], [{others}] * 6]),)"
    case = load_case(write_case(f"import torch\ndef make():\n    return (lambda x: {program}), {made}\n"))
    report = triage(case, torch.device("cpu")).to_json()
    assert report["wrong"] == "undecided" and report["confidence"] == "low"
    assert "nothing tells which of them is right" in report["detail"]
