"""Bugs of torch 2.13 whose rewrites are hard to name: one draws random numbers, one works in two halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
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
    assert culprit["necessary"] is True


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
DRAWN_IN_PLACE = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    rolled = x.roll(-1, -2)
    filled = torch.empty_like(rolled.mT).mT.copy_(rolled)
    x[..., ::2].normal_()
    return x, torch.stack([rolled, filled])

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 10, 32),)
"""


@pytest.mark.skipif(
    not torch.__version__.startswith(("2.13.", "2.15.")), reason="what dynamo answers hangs on the torch"
)
def test_a_question_that_dynamo_answers_wrongly_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(ASKED)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "is_grad_enabled()", True)


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the order of numbers hangs on the torch")
def test_uninitialised_memory_is_not_blamed_for_numbers_in_another_order(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(DRAWN_IN_PLACE)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", "aten.normal_.default")
    assert culprit["family"] == "numbers drawn in place" and culprit["necessary"]


# Inputs that share memory are merged once one is written to, and a view of one is then made of the whole.
MERGED = """
import torch

def program(whole, rest):
    whole.add_(100)
    return rest[0]

def make():
    base = torch.arange(24).view(4, 6).clone()
    return program, (base, base[1:])
"""


@pytest.mark.skipif(
    not torch.__version__.startswith(("2.13.", "2.15.")), reason="what AOTAutograd merges hangs on the torch"
)
def test_a_view_of_an_input_that_was_merged_with_another_is_found(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(MERGED)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["severity"], report["wrong"]) == ("miscompile", "silent", "compiled")
    assert report["culprit"]["stage"] == "functionalization"


# An output is a view of an input that was written to, and is made anew from what stands for that input.
REGENERATED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.register_buffer("base", base)

    def forward(self, a, b, c):
        diagonal = a.diagonal().detach()
        diagonal.add_(b.max())
        diagonal.add_(2)
        return (diagonal,)

def make():
    base = torch.arange(24)
    return Model(base).eval(), (base[::2].expand(2, -1), base[1:][1:], base.clone()[1:])
"""
# The same without an error: the view is made of other elements.
REGENERATED_ELSEWHERE = """
import torch

def program(a, b, c):
    a.copy_(a)
    return b.chunk(2)[1]

def make():
    base = torch.arange(24)
    return program, (base, base[::2], base)
"""
# What is written through a view is written back to its input as a whole, which lies on itself.
WRITTEN_BACK = """
import torch

def program(a, d):
    last = a[-1]
    last.add_(d)
    return last

def make():
    torch.manual_seed(0)
    a = torch.randint(2, (1, 1), dtype=torch.uint8).expand(2, 1)
    return program, (a, torch.randint(24, (), dtype=torch.uint8))
"""
# The same with an input of floats that lies on itself: nothing can be written to it element by element.
WRITTEN_BACK_IN_FLOATS = """
import torch

def program(a):
    last = a[1:][0][1:]
    last.add_(last)
    return last

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2).expand(2, 2),)
"""
# The view's elements are made anew by the function that raises, and a number is filled in by an operator that has
# other strides in Python than its kernel.
REGENERATED_BEHIND_A_FILL = """
import torch

def program(a, b):
    rest = b[1:]
    a[1:] = 2
    part = a[1:]
    return part[1:], a, rest, a

def make():
    base = torch.arange(15)
    return program, (base.unfold(0, 2, 3)[1:], base[1:][1:])
"""
# A tensor is given the memory of an input that was written to.
GIVEN_MEMORY = """
import torch

def program(a):
    a.add_(2)
    empty = torch.empty(0)
    empty.set_(a)
    return empty

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1),)
"""
# A list of tensors is written to, through a view with gaps.
LISTED = """
import torch

def program(b):
    windows = b.unfold(0, 2, 3)[1:]
    torch._foreach_copy_([windows], [windows + windows])

def make():
    torch.manual_seed(0)
    return program, (torch.randn(6),)
"""


REGENERATED_BY_STRIDES = """
import torch

DYNAMIC = True

def program(a):
    a.add_(a)
    return a.chunk(2)[1]

def make():
    torch.manual_seed(0)
    return program, (torch.randn(6)[1:],)
"""


BEYOND_ITS_ARGUMENT = """
import torch

def program(a):
    d = a.as_strided((2, 3), (1, 2))
    d.mul_(7)
    return d

def make():
    torch.manual_seed(0)
    return program, (torch.randn(7).as_strided((4,), (2,)),)
"""
BEYOND_A_PART = """
import torch

def program(b):
    d = b.as_strided((2, 3), (1, 2))
    d.mul_(5)
    b.add_(2)
    return b, d

def make():
    return program, (torch.arange(15).narrow(0, 9, 2),)
"""
SLOPE_INSIDE = """
import torch

BACKWARD = True

def program(x):
    height = torch.cos(x)
    (slope,) = torch.autograd.grad(height.exp().sum(), height)
    return x * 2

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2, requires_grad=True),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what AOTAutograd raises hangs on the torch")
@pytest.mark.parametrize(
    ("source", "named"),
    [
        (REGENERATED_BY_STRIDES, "gen_alias_from_base"),
        (REGENERATED, "gen_alias_from_base"),
        (REGENERATED_ELSEWHERE, "gen_alias_from_base"),
        (REGENERATED_BEHIND_A_FILL, "gen_alias_from_base"),
        (WRITTEN_BACK, "apply_in_graph_mutations"),
        (WRITTEN_BACK_IN_FLOATS, "apply_in_graph_mutations"),
        (GIVEN_MEMORY, "run_functionalized_fw_and_collect_metadata"),
        (LISTED, "aten.unfold.default"),
        (BEYOND_ITS_ARGUMENT, "_as_strided_scatter_meta"),
        (BEYOND_A_PART, "_as_strided_scatter_meta"),
        pytest.param(SLOPE_INSIDE, "joined outputs", marks=pytest.mark.slow),
    ],
    ids=["strides", "view", "other", "fill", "back", "floats", "memory", "list", "beyond", "part", "slope"],
)
def test_a_function_of_aot_autograd_is_named(source: str, named: str, write_case: Callable[..., Path]):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("functionalization", named, True)


READ_BEYOND = """
import torch

def program(a):
    a.{write}
    return a.as_strided((2, 3), (1, 2)) * 2

def make():
    torch.manual_seed(0)
    return program, (torch.randint(23, (23,)).as_strided((12,), (2,)),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the strides of these writes hang on the torch")
def test_a_view_that_reads_between_the_elements_is_one_bug_whatever_was_written(write_case: Callable[..., Path]):
    signatures = set()
    for write in ("add_(2)", "clamp_(min=5)"):
        report = triage(load_case(write_case(READ_BEYOND.replace("{write}", write))), torch.device("cpu")).to_json()
        assert report["culprit"]["necessary"] is True
        signatures.add(report["signature"])
    assert signatures == {"functionalization:-:as_strided:sharing"}


LAID_OUT_OTHERWISE = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    filled = x.new_full((1, 2, 2), 3)
    filled.bernoulli_(0.3)
    added = filled.scatter_add(-2, filled.argsort(dim=-2, stable=True) // 2, filled)
    added.transpose(-1, -2).bernoulli_(0.3)
    return added

def make():
    torch.manual_seed(0)
    return program, (torch.randint(-4, 5, (1, 2, 2), dtype=torch.int32),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the strides of these writes hang on the torch")
def test_strides_alone_that_a_write_in_place_changes_are_proved(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(LAID_OUT_OTHERWISE)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"], culprit["necessary"]) == ("metadata", "aten.bernoulli_.float", True)


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


@pytest.mark.parametrize("source", [DECIDED_BY_ROUNDING, CONDITION_INSIDE], ids=["rounding", "inside"])
def test_a_condition_has_a_reference_and_accuses_nothing(source: str, write_case: Callable[..., Path]):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert report["verdict"] in ("equal", "rounding") and "no float64 reference" not in str(report)


WRITTEN_BEFORE_BACKWARD = """
import torch

BACKWARD = True

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gains = torch.arange(3.0)

    def forward(self, x):
        return (x * self.gains.sum()).sin()

def run(model, inputs):
    first = model(*inputs)
    model.gains.zero_()
    return first, model(*inputs)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(3, requires_grad=True),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what is saved hangs on the torch")
def test_an_input_that_the_partitioner_saves_is_written_to_before_the_backward_pass(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(WRITTEN_BEFORE_BACKWARD)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["necessary"]) == ("runtime_error", "partition", True)
    assert culprit["details"]["saved"]


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


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the pass hangs on the torch")
def test_memory_that_was_not_initialised_is_no_suspect(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(WRITTEN_BESIDE_MEMORY_THAT_NOBODY_READS)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["rewrite"], culprit["necessary"]) == ("reinplace_inplaceable_ops", True)
    assert report["signature"].endswith(":sharing")  # no value of its graph moves: what it writes in place is wrong


SHARED_LATER = """
import torch

def program(a, b):
    shifted = b[:-1]
    a.sub_(a, alpha=2)
    return torch.cat([shifted, shifted])

def run(model, inputs):
    a, b = inputs
    return model(a, b.clone()), model(a, b)

def make():
    base = torch.arange(24, dtype=torch.int32)
    return program, (base, base.narrow(0, 1, 2))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="guards hang on the torch")
def test_arguments_that_share_memory_in_a_later_call_alone_are_told(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SHARED_LATER)), torch.device("cpu")).to_json()
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("stale", "STORAGE_OVERLAPPING")
    assert report["culprit"]["necessary"] is True
    assert "memory of b is that of a: absent, then True" in report["detail"]


WRITTEN_THROUGH_AS_STRIDED = """
import torch

DYNAMIC = True

def program(a, b):
    even = b[::2]
    even.add_(even)
    windows = a[::2].as_strided((2, 3), (1, 2))
    windows.cumsum_(0)
    return (windows,)

def make():
    base = torch.arange(12)
    return program, (base.view(2, -1)[-1], base)
"""


def test_what_torch_refuses_to_compile_with_a_reason_is_no_bug(write_case: Callable[..., Path]):
    with pytest.raises(CannotJudge, match="refuses to compile"):
        triage(load_case(write_case(WRITTEN_THROUGH_AS_STRIDED)), torch.device("cpu"))


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


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize(("source", "operator"), [(OVERFLOWING, "sinh"), (READ_AS_BITS, "remainder")])
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


# What is drawn is not read: the generator alone tells that other numbers were taken from it.
UNREAD = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    x.clone()[..., ::2].normal_()
    return x * 2

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3, 32),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the order of numbers hangs on the torch")
def test_numbers_that_nothing_reads_are_told_by_what_they_leave_of_the_generator(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(UNREAD)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", "aten.normal_.default")
    assert culprit["necessary"] and culprit["details"]["differs"] == "random state"


# A view over memory that its base does not reach: functionalization makes the base anew, densely, at either write.
WRITTEN_TWICE = """
import torch

def program(a):
    a.add_(1)
    a.mul_(2)
    e = a.as_strided((2, 3), (1, 2))
    e[0] = -1
    return e

def run(model, inputs):
    base = inputs[0] * 1
    return model(base[::2]), base

def make():
    torch.manual_seed(0)
    return program, (torch.randn(24),)
"""
# The analysis says that an output gets gradients, which it does not get behind a write to what shares its memory.
WRITTEN_BESIDE = """
import torch

BACKWARD = True

def program(a, b):
    a.data.add_(7)
    d = a[:-1]
    b[..., -1] = 5
    return d * 2

def run(model, inputs):
    base = inputs[0] * 1
    return model(base, base.view(2, -1)), base

def make():
    torch.manual_seed(0)
    return program, (torch.randn(6, requires_grad=True),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what these writes do hangs on the torch")
@pytest.mark.parametrize(
    ("source", "rewrite"),
    [
        (WRITTEN_TWICE, "aten.as_strided.default"),
        (WRITTEN_BESIDE, "run_functionalized_fw_and_collect_metadata"),
    ],
)
def test_what_several_writes_lead_to_is_looked_for_at_all_of_them(
    source: str, rewrite: str, write_case: Callable[..., Path]
):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("functionalization", rewrite, True)
    proved = [row["toggle"] for row in report["ablations"] if row["repairs"] and "graph break" in row["toggle"]]
    assert [", " in toggle for toggle in proved] == [source is WRITTEN_TWICE]
    assert culprit["necessary"] is True and (report["confidence"] == "low") == (source is WRITTEN_TWICE)


# A view made anew of the wrong tensor raises; without that, the write through a view with gaps is lost.
MADE_ANEW = """
import torch

def program(a, b, c):
    a.fill_(2)
    d = c[1:]
    e = d[1:]
    c.add_(5)
    d.add_(3)
    return e, e

def run(model, inputs):
    first = model(*inputs)
    first[1].add_(1)
    return first, model(inputs[0], inputs[1], inputs[2].clone())

def make():
    base = torch.arange(12)
    return program, (base.unfold(0, 2, 3), base[::2], base[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this write does hangs on the torch")
def test_what_raises_where_a_view_is_made_anew_is_one_bug_whatever_proves_it(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(MADE_ANEW)), torch.device("cpu")).to_json()
    assert report["verdict"] == "runtime_error" and report["culprit"]["necessary"] is True
    assert report["signature"].endswith("functional_utils.py:gen_alias_from_base:sharing")
    proved = [row["toggle"] for row in report["ablations"] if row["repairs"] and "graph break" in row["toggle"]]
    assert proved


# What has no gradient is the same tensor as what has one: Inductor's `detach` does nothing.
DETACHED_TOO = """
import torch

BACKWARD = True

def program(a):
    d = a * 2
    return d.detach(), d.view(2, -1)[1]

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, requires_grad=True),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what autograd is told hangs on the torch")
def test_an_output_that_is_another_one_too_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(DETACHED_TOO)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"]) == ("wrong_gradient", "AOTDispatchAutograd.post_compile")
    assert culprit["necessary"] and culprit["family"] == "repeated output"


CAST_AND_SINE = """
import torch

def program(x):
    return torch.sin(x.to(torch.bfloat16).float())

def make():
    torch.manual_seed(0)
    return program, (torch.randn(64),)
"""


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
