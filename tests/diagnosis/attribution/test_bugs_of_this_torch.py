"""Bugs that torch 2.13 has and that are hard to name, but for those of AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")


# torch's own fusion of dropouts forgets p and training.
SOURCE = """
import torch
import torch.nn.functional as F

OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}, "batch_dropout": {"min_fuse_set_size": 2}}}

class Model(torch.nn.Module):
    def forward(self, x):
        one, other = x.split(4, dim=-1)
        return torch.cat([F.dropout(one, 0.1, self.training), F.dropout(other, 0.1, self.training)], dim=-1)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 9, 8),)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this fusion does hangs on the torch")
def test_a_fusion_that_drops_in_eval_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SOURCE)), torch.device("cpu")).to_json()
    assert report["verdict"] == "miscompile"
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("pre_grad", "BatchDropoutPreGradFusion")
    assert culprit["necessary"] is True


# The handler of unbind_cat_to_view, which forgets the order of the parts, calls a pass before it is done.
REORDERED = """
import torch

OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}, "unbind_cat_to_view_pass": {}}}

def program(x):
    one, other = torch.unbind(x, dim=-2)
    return torch.cat([other, one])

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3, 2, 4),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this pass does hangs on the torch")
def test_a_pattern_whose_handler_calls_a_pass_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(REORDERED)), torch.device("cpu")).to_json()
    assert report["is_bug"]
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("pre_grad", "unbind_cat_to_view")
    assert culprit["details"]["reordered"]
    assert culprit["necessary"] is True
    assert (report["severity"], report["opt_in"]) == ("opt_in", ["pre_grad_fusion_options"])


# _sfdp_pattern_8 takes weights that are cast down to float16 for weights cast back to the query's float32. The output's
# dtype changes, and with it that of the tangent which the compiled program gets.
CAST_DOWN = """
import torch

BACKWARD = True

def program(q, k, v):
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    weights = (q @ k.transpose(-2, -1) / 2.8284).float().softmax(-1).to(torch.float16)
    return weights @ v.to(weights.dtype)

def make():
    torch.manual_seed(0)
    return program, tuple(torch.randn(2, 5, 4, 8, requires_grad=True) for _ in range(3))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this pattern does hangs on the torch")
@pytest.mark.slow
def test_a_rewrite_that_changes_the_dtype_of_a_trained_output_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(CAST_DOWN)), torch.device("cpu")).to_json()
    assert report["verdict"] == "metadata"
    assert report["culprit"]["rewrite"] == "_sfdp_pattern_8_training"
    assert report["culprit"]["necessary"] is True


# The decomposition of xlogy has another layout than its kernel, and so has its fake tensor: it takes both to repair it.
TOGETHER = """
import torch

def program(x, y):
    return torch.xlogy(x, y)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), torch.randn(1, 2, 2).transpose(1, 2))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this decomposition does hangs on the torch")
def test_a_function_that_is_decomposition_and_fake_tensor_rule_at_once_is_one_culprit(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(TOGETHER)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["confidence"]) == ("metadata", "high")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("decomposition", "aten.xlogy.Tensor")
    assert culprit["necessary"] is True and report["contributors"] == []


# Dynamo answers for the process: in inference mode it takes gradients to be off, whatever the program sets.
ASKED = """
import torch

GRAD = "inference_mode"

def program(x):
    return x.sin() * 2 if torch.is_grad_enabled() else x.sin()

def run(model, inputs):
    with torch.set_grad_enabled(True):
        return model(*inputs)

def make():
    return program, (torch.ones(3),)
"""


# A functional draw fills new memory, in the order of which the numbers then lie.
@pytest.mark.skipif(
    not torch.__version__.startswith(("2.13.", "2.15.")), reason="what dynamo answers hangs on the torch"
)
def test_a_question_that_dynamo_answers_wrongly_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(ASKED)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "is_grad_enabled()", True)


CHANGED_LIST = """
import copy

import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = [2.0, 2.0]

    def forward(self, x):
        x = x * 1.25
        return x.sin() if 0.5 in self.factors else x.cos()

def run(model, inputs):
    assert isinstance(copy.deepcopy(model), nn.Module)
    first = model(*inputs)
    model.factors = [0.5, 2.0]
    return first, model(*inputs)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(1, 2, 2),)
"""


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="numbers that dynamo leaves open hang on the torch"
)
def test_an_instruction_is_proved_behind_a_change_of_the_model(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(CHANGED_LIST)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "float in list", True)


TWO_FAULTS = """
import torch

OPTIONS = {"fallback_random": True}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = [2.0, 2.0]

    def forward(self, x):
        y = x * 1.25
        y = y.sin() if 0.5 in self.factors else y.cos()
        z = x.clone()
        z[..., ::2].uniform_(-1, 1)
        return y, z

def run(model, inputs):
    first = model(*inputs)
    model.factors = [0.5, 2.0]
    return first, model(*inputs)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(1, 2, 2),)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="both faults hang on the torch")
def test_what_raises_is_proved_though_dynamo_gets_something_else_wrong(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(TWO_FAULTS)), torch.device("cpu")).to_json()
    assert report["verdict"] == "runtime_error"
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("aten.uniform.default", True)
    assert report["workaround"] is None  # what does not raise gives wrong values


SHARED_BESIDE_A_SHAPE = """
import torch

def program(x):
    every = torch.all(x, dim=(), keepdim=False)
    return x * torch.full((4,), 1, dtype=torch.int32), every

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="both faults hang on the torch")
def test_shared_memory_is_proved_though_a_shape_is_wrong_too(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SHARED_BESIDE_A_SHAPE)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert {output["finding"] for output in report["evidence"]["outputs"]} == {"alias", "shape"}
    assert (report["verdict"], culprit["rewrite"]) == ("aliasing", "constant_fold_uniform_value")
    assert culprit["necessary"] is True


DECIDED_BY_ROUNDING = """
import torch

BACKWARD = True
DYNAMIC = True

def program(x):
    x = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y * 2, (x,))

def run(model, inputs):
    return model(*inputs), model(*inputs)

def make():
    torch.manual_seed(805978)
    return program, (torch.randn(1, 10, 48, requires_grad=True),)
"""


CONDITION_INSIDE = """
import torch

BACKWARD = True

def program(x):
    inner = lambda y: torch.cond(y.sum() > 3, lambda z: z * 2, lambda z: z.cos(), (y,))
    return torch.cond(x.sum() > 0, inner, lambda y: y * 3, (x,))

def make():
    return program, (torch.linspace(-1, 2, 8).requires_grad_(),)
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(DECIDED_BY_ROUNDING, marks=pytest.mark.slow, id="rounding"),
        pytest.param(CONDITION_INSIDE, marks=pytest.mark.slow, id="inside"),
    ],
)
def test_a_condition_has_a_reference_and_accuses_nothing(source: str, write_case: Callable[..., Path]):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert not report["is_bug"] and "no float64 reference" not in str(report)


WRITTEN_BESIDE_MEMORY_THAT_NOBODY_READS = """
import torch

def program(x, b):
    flip = x.flip(-1)
    x[..., 1:, :] = flip[..., 1:, :]
    return torch.nn.functional.rrelu(b)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), torch.randn(1, 2, 2))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the pass hangs on the torch")
def test_memory_that_was_not_initialised_is_no_suspect(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(WRITTEN_BESIDE_MEMORY_THAT_NOBODY_READS)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["rewrite"], culprit["necessary"]) == ("reinplace_inplaceable_ops", True)
    assert report["signature"].endswith(":sharing")  # no value of its graph moves: what it writes in place is wrong


DRAWN_INTO_ONE_COLUMN = """
import torch

def program(x):
    x.uniform_(-1, 1)
    return x

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3).as_strided((1, 2, 1), (4, 2, 2)),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the rule of a fake tensor hangs on the torch")
def test_strides_that_a_rule_of_fake_tensors_gets_wrong_are_proved_by_the_kernels(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(DRAWN_INTO_ONE_COLUMN)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("fake_tensor", "aten.uniform.default", True)


WRITTEN_INPUT_UNDER_AOTI = """
import torch

PATH = "aoti"

class Model(torch.nn.Module):
    def forward(self, x, y):
        a = y.transpose(-1, -2)
        a.transpose(-1, -2).mul_(-1)
        return a

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 5), torch.randn(5, 3))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith(("2.13.", "2.15.")), reason="what AOTInductor gives back hangs on the torch"
)
def test_what_aot_inductor_alone_gets_wrong_is_named(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(WRITTEN_INPUT_UNDER_AOTI)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("codegen", "AOTInductor", True)


OVERFLOWING = """
import torch

def program(x):
    return torch.sinh(torch.floor(x * 4.0) * 89.0)

def make():
    return program, (torch.full((4, 6), 0.25, dtype=torch.bfloat16),)
"""


# No operator is wrong by itself where it reads what has no memory of its own.
READ_AS_BITS = """
import torch

def program(x, y):
    read = y.view(torch.float64)
    joined = torch.cat([torch.cat([read, y], -1), read, x], -1)
    return (joined.view(torch.int64) ^ 1).view(torch.float64) % float("inf")

def make():
    torch.manual_seed(0)
    return program, (torch.ones(1, 2, 2), torch.randint(-4, 5, (1, 2, 2)))
"""


OF_SHORT_FLOATS = OVERFLOWING.replace("torch.sinh(torch.floor(x * 4.0) * 89.0)", "x % torch.inf").replace(
    "(4, 6)", "(12, 6)"
)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize(
    ("source", "operator"),
    [
        (OVERFLOWING, "sinh"),
        (OF_SHORT_FLOATS, "remainder"),
        pytest.param(READ_AS_BITS, "remainder", marks=pytest.mark.slow),
    ],
)
def test_an_operator_that_is_wrong_in_vectors_alone_is_no_fault_of_its_lowering(
    write_case: Callable[..., Path], source: str, operator: str
):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip("vectors of this processor are right")
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == (f"CppVecOverrides.{operator}", True)


# The pattern of an index by randperm raises; without it, random numbers of float64 are others, which is another bug.
RAISING_BESIDE_WRONG = """
import torch

OPTIONS = {"fallback_random": True}

def program(y):
    return y[torch.randperm(24)].split([1, 23], -1)[1], torch.bernoulli(y.sigmoid())

def make():
    torch.manual_seed(0)
    return program, (torch.randn(24, dtype=torch.float64),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
def test_a_rewrite_that_raises_is_proved_whatever_is_wrong_behind_it(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(RAISING_BESIDE_WRONG)), torch.device("cpu")).to_json()
    assert report["verdict"] == "compile_error"
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("randperm_index_pattern", True)


# 140495 overflows in float16, which compiled code passes over by design; what it then makes of infinity is a bug.
OVERFLOWING_CASTS = """
import torch

def program(x):
    return x.to(torch.float16).to(torch.bfloat16){}

def make():
    return program, (torch.tensor([140495.0]),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize(
    ("then", "verdict", "rewrite"), [("", "precision_casts", None), (" // 2", "nonfinite", "aten.div.Tensor_mode")]
)
def test_overflow_in_casts_that_are_left_out_is_no_bug_and_hides_none(
    write_case: Callable[..., Path], then: str, verdict: str, rewrite: str | None
):
    report = triage(load_case(write_case(OVERFLOWING_CASTS.format(then))), torch.device("cpu")).to_json()
    assert report["verdict"] == verdict
    assert (report["culprit"] or {}).get("rewrite") == rewrite


# A bitcast of a value that has no memory yet, and a write to that by place: memory is indexed before it is there.
UNSTORED = """
import torch

def program(a, at, rows):
    return torch.index_add((a ^ 1).view(torch.float32), -1, at, rows)

def make():
    torch.manual_seed(0)
    return program, (torch.randint(1 << 30, (1, 1, 2), dtype=torch.int32), torch.randint(2, (1,)), torch.randn(1, 1, 1))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this lowering does hangs on the torch")
def test_an_error_that_is_gone_once_a_value_is_stored_names_its_lowering(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(UNSTORED)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("compile_error", "lowering", "aten.view.dtype")
    assert culprit["necessary"] is True and culprit["details"]["stored"] == "aten.view.dtype"


CAST_AND_SINE = """
import torch

def program(x):
    return torch.sin(x.to(torch.bfloat16).float())

def make():
    torch.manual_seed(0)
    return program, (torch.randn(64),)
"""


@pytest.mark.slow
def test_the_search_that_keeps_casts_ends_where_nothing_explains_a_bug(write_case: Callable[..., Path], monkeypatch):
    """It compiles with the casts kept once, and not within that again."""
    from torch._inductor import lowering

    from fuzzcompile.diagnosis import attributor

    sine = torch.ops.aten.sin.default
    original = lowering.lowerings[sine]
    monkeypatch.setitem(lowering.lowerings, sine, lambda x: original(lowering.mul(x, 2)))
    monkeypatch.setattr(attributor, "look_around_rewrites", lambda ablator: None)
    report = triage(load_case(write_case(CAST_AND_SINE)), torch.device("cpu")).to_json()
    toggles = [ablation["toggle"] for ablation in report["ablations"]]
    assert report["is_bug"] and toggles.count("emulate_precision_casts=True") == 1


# A copy of a view is taken for the view itself; what it is a view of is written to before the copy is read.
COPY_LOST = """
import torch

def program(b, a):
    d = b[0]
    a.copy_(d)
    {write}
    return a

def make():
    return program, (torch.arange(4).reshape(2, 2), torch.zeros(2, dtype=torch.int64))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="which copies are left out hangs on the torch")
def test_a_rewrite_that_reads_memory_behind_a_write_is_one_bug_whatever_is_written(write_case: Callable[..., Path]):
    signatures = set()
    for write in ("d.add_(3)", "d.copy_(d.flip(0))"):
        report = triage(load_case(write_case(COPY_LOST.format(write=write))), torch.device("cpu")).to_json()
        assert report["culprit"]["rewrite"] == "remove_noop_ops" and report["culprit"]["necessary"] is True
        signatures.add(report["signature"])
    assert len(signatures) == 1 and signatures.pop().endswith(":sharing")


# A view that is lowered to a loop has strides of its own, and so has what is a view of it.
LOWERED_TO_A_LOOP = """
import torch

def program(x):
    y = x ^ 1
    return {view}

def make():
    torch.manual_seed(0)
    return program, (torch.randint(9, (3, 4), dtype=torch.int32),)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="which views are loops hangs on the torch")
def test_strides_of_views_are_one_bug_whatever_the_view(write_case: Callable[..., Path]):
    signatures = set()
    for view in ("y.view(torch.float32).unfold(-1, 2, 1)", "y.unfold(-1, 2, 1).diagonal(0, -2, -1)"):
        report = triage(load_case(write_case(LOWERED_TO_A_LOOP.replace("{view}", view))), torch.device("cpu")).to_json()
        assert (report["culprit"]["stage"], report["culprit"]["necessary"]) == ("lowering", True)
        signatures.add(report["signature"])
    assert signatures == {"lowering:torch/_inductor/graph.py:strides of a view"}


# The kernel of what a custom operator writes looks wrong beside its graph; the remainder of another kernel is.
REMAINDER = """
import torch

@torch.library.custom_op("remainders::add_mean_", mutates_args=("out",))
def add_mean_(out: torch.Tensor, x: torch.Tensor) -> None:
    out.add_(x.mean())

def program(x, y):
    before, x = x, x * 2
    add_mean_(x, before)
    x = x + before
    a = x / 100
    return x, a, y % 1e-30

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 8, 64), torch.randn(8, 64))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="how vectors divide hangs on the torch")
def test_an_operator_of_a_later_kernel_is_named_though_an_earlier_one_looks_wrong(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(REMAINDER)), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip("vectors of this processor are right")
    assert report["signature"].endswith("cpp.py:remainder") and report["culprit"]["necessary"] is True


# With open sizes the derivative of a variance without degrees of freedom divides by zero in Python.
NO_FREEDOM = """
import torch

BACKWARD = True
CALLS = [(torch.randn(2, 17, requires_grad=True),)]

def program(x):
    return torch.var(x.sin()[None], dim=(1,), correction=2)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 16, requires_grad=True),)
"""


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the formula of the derivative hangs on the torch"
)
@pytest.mark.slow
def test_where_nothing_else_is_proved_the_only_call_behind_which_all_is_right_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(NO_FREEDOM)), torch.device("cpu")).to_json()
    assert report["verdict"] == "compile_error" and "division by zero" in report["detail"]
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("functionalization", "torch.var", True)
    assert report["confidence"] == "low", "a graph break moves much, and no part of the compiler is at fault by it"


# Eager's kernel copies a dimension whose size stays; the decomposition resamples it, and so does the lowering.
RESAMPLED = """
import torch
import torch.nn.functional as F

def program(x):
    return F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest")

def make():
    return program, (torch.arange(12.0).view(1, 1, 3, 4),)
"""


def test_a_decomposition_whose_fault_the_lowering_repeats_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(RESAMPLED)), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip(f"torch {torch.__version__} copies such a dimension")
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("decomposition", "aten.upsample_nearest2d.vec")
    assert culprit["necessary"] is True


# One call, and nothing that proves what is at fault in it: deviations far below float32's squares.
SINGLE = """
import torch

def program(x):
    return x.std()

def make():
    torch.manual_seed(0)
    return program, (torch.randn(64) * 1e-30,)
"""


def test_of_a_program_with_one_call_that_call_is_suspected(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SINGLE)), torch.device("cpu")).to_json()
    if not report["is_bug"]:
        pytest.skip(f"torch {torch.__version__} computes it with eager's precision")
    assert (report["culprit"]["rewrite"], report["confidence"]) == ("std", "low")


UNNEEDED = """
import torch

OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}, "split_cat_to_slices_pass": {}}}

def program(x):
    a, b = torch.split(x, [1, 1], dim=-1)
    joined = torch.cat([a, b], dim=-1)
    x.neg_()
    return joined

def make():
    return program, (torch.ones(4, 2),)
"""


def test_settings_that_a_bug_does_not_need_neither_lower_its_severity_nor_mislead(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(UNNEEDED)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["severity"], report["opt_in"]) == ("miscompile", "silent", [])
    assert report["culprit"]["rewrite"] == "splitwithsizes_cat_replace" and report["culprit"]["necessary"]
