"""Bugs of AOTAutograd that this torch has: writes, views and what is saved, named and proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.programs.casefiles.case_module import load_case

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


# As above, where the output is a part that Python's own operator takes.
REGENERATED_PART = """
import torch

DYNAMIC = True

def program(a):
    part = a.chunk(2)[1]
    a.fill_(5)
    part.masked_fill_(part < 7, 5)
    part.add_(2)
    return part

def run(model, inputs):
    made = model(*inputs)
    made.add_(1)
    return made

def make():
    torch.manual_seed(0)
    return program, (torch.randn(8)[1:],)
"""


# Views are made anew of the memory that arguments share, either by the program's views or by their strides.
REGENERATED_OF_SHARED_MEMORY = """
import torch
from torch import nn

DYNAMIC = True

class Model(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.register_buffer("base", base)

    def forward(self, a, b):
        a += 7
        d = self.base[1:]
        self.base.sub_(b)
        g = a.view_as(a)
        return g, d, self.base

def run(model, inputs):
    first = model(*inputs)
    second = model(*inputs)
    second[0].add_(1)
    return first, second

def make():
    torch.manual_seed(0)
    base = torch.randn(15)
    return Model(base).eval(), (base[1::2], torch.randn(15))
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
        (REGENERATED_OF_SHARED_MEMORY, "gen_alias_from_base"),
        (REGENERATED_PART, "gen_alias_from_base"),
        (WRITTEN_BACK, "apply_in_graph_mutations"),
        (WRITTEN_BACK_IN_FLOATS, "apply_in_graph_mutations"),
        (GIVEN_MEMORY, "run_functionalized_fw_and_collect_metadata"),
        (LISTED, "aten.unfold.default"),
        (BEYOND_ITS_ARGUMENT, "_as_strided_scatter_meta"),
        (BEYOND_A_PART, "_as_strided_scatter_meta"),
        pytest.param(SLOPE_INSIDE, "joined outputs", marks=pytest.mark.slow),
    ],
    ids=[
        "strides",
        "view",
        "other",
        "fill",
        "shared",
        "part of it",
        "back",
        "floats",
        "memory",
        "list",
        "beyond",
        "part",
        "slope",
    ],
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


TWICE_DIFFERENTIATED = """
import torch

GRAD = "enabled"

def run(program, inputs):
    (x,) = inputs
    (first,) = torch.autograd.grad(program(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)

def make():
    return torch.sin, (torch.ones(3, requires_grad=True),)
"""


@pytest.mark.parametrize("source", [WRITTEN_THROUGH_AS_STRIDED, TWICE_DIFFERENTIATED], ids=["as_strided", "twice"])
def test_what_torch_refuses_to_compile_with_a_reason_is_no_bug(source: str, write_case: Callable[..., Path]):
    with pytest.raises(CannotJudge, match="refuses to compile"):
        triage(load_case(write_case(source)), torch.device("cpu"))


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


# Behind a write to what shares its memory, tangents are counted otherwise than outputs.
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
        pytest.param(WRITTEN_BESIDE, "inner_fn", marks=pytest.mark.slow),
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


# In eager mode the kernel of a whole layer casts as autocast says; a compiled graph calls it outside of autocast.
WHOLE_LAYER = """
import torch
from torch import nn

def run(model, inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*inputs)

def make():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(2, 2, 2, dropout=0.0, batch_first=True).eval(), (torch.randn(1, 2, 2),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="how autocast reaches this kernel hangs on torch")
def test_calls_are_compared_under_the_autocast_of_their_program(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(WHOLE_LAYER)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["rewrite"]) == ("metadata", "torch._transformer_encoder_layer_fwd")
    assert culprit["necessary"] is True and (culprit["details"]["expected"], culprit["details"]["got"]) == (
        "result 0: torch.bfloat16",
        "result 0: torch.float32",
    )


# A view that a program draws numbers into, of an input that requires a gradient in its second call alone.
DRAWN_INTO_A_VIEW = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    view = x.unsqueeze(-1).unsqueeze(-1).squeeze(3)
    view.normal_()
    return view

CALLS = [(torch.randn(2, 2, 2),), (torch.randn(2, 2, 2, requires_grad=True),)]

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2),)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what AOTAutograd refuses hangs on the torch")
def test_what_the_front_of_aot_autograd_raises_is_proved_at_the_write(write_case: Callable[..., Path]):
    culprit = triage(load_case(write_case(DRAWN_INTO_A_VIEW)), torch.device("cpu")).to_json()["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == (
        "functionalization",
        "create_aot_state",
        True,
    )
