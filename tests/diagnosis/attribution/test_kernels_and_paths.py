"""ATen kernels that are wrong on some layouts, and programs that take another path when they are compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.decomposition import decompositions

from fuzzcompile.compiler.functional_run import find_identity_nodes
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.attributor import find_producer
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = [
    pytest.mark.usefixtures("no_workarounds"),
    pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel"),
]

aten = torch.ops.aten
CPU = torch.device("cpu")
WriteCase = Callable[..., Path]


def report_on(path: Path) -> dict[str, Any]:
    return triage(load_case(path), CPU).to_json()


# -- plants -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kernel(operator: Any, wrong: Callable[..., Any]) -> Iterator[None]:
    """The CPU kernel of an operator is ``wrong(right, *args, **kwargs)`` inside the block."""
    right = torch.library.get_kernel(operator, "CPU")
    library = torch.library.Library("aten", "IMPL")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return wrong(lambda *a, **k: right.call_boxed(keys, *a, **k), *args, **kwargs)

    name = operator._schema.name.partition("::")[2]
    library.impl(f"{name}.{operator._schema.overload_name}".rstrip("."), run, "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


def read_in_order_of_memory(right: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Takes a transposed operand for a contiguous one."""
    as_if = torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape, device="meta").stride())
    return right(as_if, *args, **kwargs)


def refuses_transposed(right: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not tensor.is_contiguous():
        raise RuntimeError("expected a contiguous operand")
    return right(tensor, *args, **kwargs)


# -- kernels that are wrong on some layouts -----------------------------------------------------------

EAGER = """
import torch

def program(x):
    return torch.special.erfcx(x.t()) + x.t()

def make():
    torch.manual_seed(0)
    return program, (torch.rand(4, 6),)
"""


@pytest.mark.slow
def test_a_kernel_that_misreads_what_eager_mode_gives_it_is_named_and_proved(write_case: WriteCase):
    with kernel(aten.special_erfcx.default, read_in_order_of_memory):
        report = report_on(write_case(EAGER))
    culprit = report["culprit"]
    assert (report["verdict"], report["wrong"], report["confidence"]) == ("eager_wrong", "eager", "high")
    assert (culprit["rewrite"], culprit["necessary"]) == ("aten.special_erfcx.default", True)
    named = culprit["details"]["aten_kernel"]
    assert (named["operator"], named["wrong_in"]) == ("aten.special_erfcx.default", "eager")
    assert named["inputs"] == [{"shape": [6, 4], "stride": [1, 6], "dtype": "float64"}]
    assert named["call"] == "torch.ops.aten.special_erfcx.default(inputs[0])"
    assert "contiguous" in report["workaround"]["how"], "to agree with a wrong kernel mends nothing"


COMPILED = """
import torch

def program(x, y):
    return torch.logaddexp(x, y) + 1

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4), torch.randn(3, 4))
"""


@contextlib.contextmanager
def as_a_scan() -> Iterator[None]:
    """``logaddexp`` is decomposed, rightly, into an operator that gets a transposed operand and is not lowered."""

    def decomposition(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return aten.logcumsumexp(torch.stack([x, y]).transpose(0, 1), 1)[:, 1]

    kept = decompositions.get(aten.logaddexp.default)
    decompositions[aten.logaddexp.default] = decomposition
    try:
        yield
    finally:
        del decompositions[aten.logaddexp.default]
        decompositions.update({} if kept is None else {aten.logaddexp.default: kept})


@pytest.mark.slow
def test_a_kernel_that_only_the_compiled_program_reaches_is_named_and_proved(write_case: WriteCase):
    with as_a_scan(), kernel(aten.logcumsumexp.default, read_in_order_of_memory):
        report = report_on(write_case(COMPILED))
    culprit = report["culprit"]
    assert (report["verdict"], report["confidence"]) == ("miscompile", "high")
    assert (culprit["stage"], culprit["rewrite"]) == ("decomposition", "aten.logcumsumexp.default")
    assert culprit["necessary"] is True and culprit["site"] is not None
    assert culprit["details"]["aten_kernel"]["wrong_in"] == "compiled"


def test_a_kernel_that_raises_on_what_only_the_compiled_program_gives_it_is_named(write_case: WriteCase):
    with as_a_scan(), kernel(aten.logcumsumexp.default, refuses_transposed):
        report = report_on(write_case(COMPILED))
    culprit = report["culprit"]
    assert report["verdict"] == "runtime_error"
    assert (culprit["rewrite"], culprit["necessary"]) == ("aten.logcumsumexp.default", True)
    assert culprit["details"]["got"] == "RuntimeError: expected a contiguous operand"


# -- other paths through an operator ------------------------------------------------------------------

POOLED = """
import torch
import torch.nn.functional as F

def program(x):
    y = F.max_pool1d(x.transpose(1, 2), 3, 1, 1)
    return y.to(x.dtype)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 6, 4),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="which path pooling takes hangs on the torch")
def test_a_layout_that_another_path_gives_is_not_blamed_on_what_passes_it_on(write_case: WriteCase):
    report = report_on(write_case(POOLED))
    assert "where its inputs require gradients" in report["evidence"]["layout_doubt"]
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["family"], culprit["necessary"]) == ("functionalization", "max_pool1d", True)
    assert culprit["details"]["kind"] == "stride"


# -- other paths through Python -----------------------------------------------------------------------

TRACED = """
import torch

def program(x):
    y = torch.sin(x).t()
    if torch.compiler.is_compiling():
        y = y.contiguous()
    return y

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5),)
"""


def test_a_branch_that_is_taken_only_under_dynamo_is_named_and_proved(write_case: WriteCase):
    report = report_on(write_case(TRACED))
    culprit = report["culprit"]
    assert (report["verdict"], report["confidence"]) == ("metadata", "high")
    assert report["evidence"]["layout_doubt"] is None
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "is_compiling()", True)
    assert (culprit["details"]["expected"], culprit["details"]["got"]) == ("false", "true")


FAST_PATH = """
import torch

def make():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    return (lambda x: layer(x, x, x, need_weights=False)[0]), (torch.randn(2, 3, 4),)
"""


def sequence_first(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result, *rest = right(*args, **kwargs)
    return (result.transpose(0, 1).contiguous().transpose(0, 1), *rest)


@pytest.mark.slow
def test_a_fast_path_that_dynamo_does_not_trace_is_named_and_proved(write_case: WriteCase):
    with kernel(aten._native_multi_head_attention.default, sequence_first):
        report = report_on(write_case(FAST_PATH))
    culprit = report["culprit"]
    assert (report["verdict"], report["confidence"]) == ("metadata", "high")
    assert (culprit["stage"], culprit["family"]) == ("dynamo", "_native_multi_head_attention")
    assert culprit["necessary"] is True and "is_exporting" in culprit["details"]["agrees"]
    assert not torch.compiler.is_exporting() and torch.backends.mha.get_fastpath_enabled()


# -- what made an output ------------------------------------------------------------------------------

PASSED_ON = """
import torch

def program(x):
    return torch.sin(x).contiguous().to(x.dtype)

def make():
    return program, (torch.ones(3),)
"""


def test_what_gives_its_argument_back_has_made_no_output(write_case: WriteCase):
    frame = Experiments(load_case(write_case(PASSED_ON)), CPU).trial().ledger.frames[0]
    record = frame.find_record("pre_grad")
    assert record is not None
    snapshot, inputs = record.snapshots[0], find_inputs(frame, record)
    assert inputs is not None
    passing = find_identity_nodes(snapshot, inputs)
    assert len(passing) == 2
    assert find_producer(snapshot.graph, "out0", passing) == "sin"


EXPORTED = """
import torch

PATH = "export"

def make():
    torch.manual_seed(0)
    return torch.sin, (torch.randn(4, 3),)
"""


def test_a_capture_by_export_that_dynamo_makes_rightly_is_named_and_proved(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch
):
    right = torch.export.export

    def export(*args: Any, **kwargs: Any) -> Any:
        program = right(*args, **kwargs)
        for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default
        program.graph_module.recompile()
        return program

    monkeypatch.setattr(torch.export, "export", export)
    report = report_on(write_case(EXPORTED))
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("miscompile", "dynamo", "torch.export")
    assert (culprit["necessary"], report["signature"]) == (True, "dynamo:-:cos")


@pytest.mark.parametrize(
    "backend", ["", pytest.param('BACKEND = "aot_eager"', marks=pytest.mark.slow)], ids=["Inductor", "own backend"]
)
def test_overloads_that_share_a_wrong_decomposition_are_kept_whole_together(tmp_path, backend):
    from torch._decomp import decompositions

    path = tmp_path / "case.py"
    path.write_text(
        f"import torch\n{backend}\n\ndef f(x):\n"
        "    return torch.nn.functional.interpolate(x, scale_factor=2.0, mode='bilinear')\n\n"
        "def make():\n    torch.manual_seed(0)\n    return f, (torch.randn(1, 2, 4, 4),)\n"
    )
    right = decompositions._upsample_linear
    with mock.patch.object(decompositions, "_upsample_linear", lambda *args, **kwargs: right(*args, **kwargs) * 1.25):
        attribution = triage(load_case(path), torch.device("cpu")).attribution
    culprit = attribution.culprit
    assert (culprit.stage, culprit.rewrite) == ("decomposition", "aten.upsample_bilinear2d.vec")
    assert culprit.necessary is True
    both = "aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default"
    assert any(both in each.toggle and each.repairs for each in attribution.ablations)


# A draw in place gets memory that lies otherwise than the graph says. Behind another draw it is the body of a node.
DRAWN_IN_PLACE = """
import torch

def program(x):
    changed = x.transpose(-1, -2){}
    changed.clamp_(-9, 9)
    x.normal_()
    return changed

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize("drawn", ["", ".cauchy_()"])
def test_a_draw_on_memory_that_lies_otherwise_is_proved_by_having_aten_draw(write_case, drawn: str):
    report = triage(load_case(write_case(DRAWN_IN_PLACE.format(drawn))), CPU).to_json()
    assert (report["verdict"], report["confidence"]) == ("miscompile", "high")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == ("lowering", "aten.normal_functional.default")
    assert report["culprit"]["necessary"]


# What is put together takes a part's place in the whole for the part itself, which is returned beside it.
JOINED_PART = """
import torch

def program(x, y):
    a = torch.fliplr(y)
    part = torch.diagonal_scatter(a, a.diagonal(0, -2, -1).flip(-1), 0, -2, -1)
    beside = part.unsqueeze(-1)
    return torch.cat([{}], -1), beside

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2), torch.randn(2, 2, 2))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize("joined", ["a, part", pytest.param("part, x", marks=pytest.mark.slow)])
def test_memory_shared_in_generated_code_is_not_blamed_on_a_view_or_an_order_of_nodes(write_case, joined: str):
    report = triage(load_case(write_case(JOINED_PART.format(joined))), CPU).to_json()
    assert report["verdict"] == "aliasing"
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("aten.cat.default", True)


# A result is made in an input's memory, which is then written to, or copied to itself.
MADE_IN_AN_INPUT = """
import torch

def program(x, places, values):
    added = torch.index_add(x, -1, places, values)
    {}
    return added.movedim(0, -1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2), torch.randint(2, (2,)), torch.randn(1, 1, 2))
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
@pytest.mark.parametrize(
    ("write", "verdict"), [("x.mul_(2)", "miscompile"), pytest.param("x[..., :2] = added", "aliasing", id="assigned")]
)
def test_a_result_made_in_an_inputs_memory_is_one_bug_in_whatever_way_it_shows(write_case, write: str, verdict: str):
    report = triage(load_case(write_case(MADE_IN_AN_INPUT.format(write))), CPU).to_json()
    assert report["verdict"] == verdict
    assert report["signature"].endswith("reinplace.py:reinplace_inplaceable_ops:sharing")


# The strides of the second draw are asserted, and are others; the first draws other numbers into a part of a tensor.
RAISING_BESIDE_ANOTHER = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    a = x + x
    a[..., ::2].normal_(1.0, 2.0)
    a[..., 1:].uniform_(-1, 1)
    return a.unfold(-2, 2, 2)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 15, 48, dtype=torch.float16),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
def test_an_error_is_proved_where_what_is_left_is_a_fault_of_aot_autograd(write_case):
    report = triage(load_case(write_case(RAISING_BESIDE_ANOTHER)), CPU).to_json()
    assert report["verdict"] == "runtime_error" and "expected size" in report["detail"]
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("aten.uniform.default", True)


# Nobody reads the second draw, which compiled code leaves out; it waits for the first one, and the third for it.
UNREAD_DRAW = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    a = torch.empty_like(x).uniform_() + x
    torch.empty_like(x).bernoulli_(0.3)
    return a + torch.rand_like(x)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(6, 8),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="later ones may have it right")
def test_a_draw_that_is_left_out_among_others_that_wait_is_named(write_case):
    report = triage(load_case(write_case(UNREAD_DRAW)), CPU).to_json()
    assert (report["verdict"], report["confidence"]) == ("miscompile", "high")
    assert (report["culprit"]["rewrite"], report["culprit"]["necessary"]) == ("aten.bernoulli.p", True)
