"""What AOTAutograd does around its graphs, methods left to eager mode, and calls that draw."""

from __future__ import annotations
import __future__

import importlib
import inspect
import operator
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import trace_rules
from torch._dynamo.variables import TorchInGraphFunctionVariable
from torch._inductor import ir
from watching import make_compilation

from fuzzcompile.compiler.functional_run import find_lossy_views
from fuzzcompile.compiler.graph_breaks import find_captured_calls
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch import aot_autograd
from fuzzcompile.compiler.watch.ledger import MetadataAnalysis, Snapshot
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import Case, CompileSettings

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")

CPU = torch.device("cpu")
WriteCase = Callable[..., Path]


def judge(write_case: WriteCase, source: str) -> dict[str, Any]:
    return triage(load_case(write_case(source)), CPU).to_json()


TRAINED = """
import torch

BACKWARD = True

def program(x):
    return torch.tanh(x).t()

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5, requires_grad=True),)
"""


def test_a_copy_of_a_tangent_that_loses_values_is_named_proved_and_worked_around(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch
):
    wrappers = importlib.import_module(aot_autograd.PLACE[0])
    right = getattr(wrappers, aot_autograd.PLACE[1])

    def loses_a_row(x: Any, memory_format: Any) -> Any:
        copied = right(x, memory_format)
        return copied if copied is x else copied.index_fill(0, torch.tensor([1]), 0.0)

    monkeypatch.setattr(wrappers, aot_autograd.PLACE[1], loses_a_row)
    report = judge(write_case, TRAINED)
    culprit = report["culprit"]
    assert (report["verdict"], report["confidence"]) == ("wrong_gradient", "high")
    assert (culprit["stage"], culprit["family"], culprit["necessary"]) == ("functionalization", "tangent", True)
    assert culprit["source"] == "torch/_functorch/_aot_autograd/runtime_wrappers.py"
    assert culprit["details"] == {"kind": "tangent", "shape": [5, 3], "strides": [1, 5]}
    assert report["workaround"]["how"] == "torch._functorch.config.guess_tangent_strides_as_outputs = False"


def test_a_tangent_copied_into_another_layout_keeps_a_case_clean(write_case: WriteCase):
    report = judge(write_case, TRAINED)
    assert report["verdict"] in ("equal", "rounding")
    assert report["culprit"] is None


ANALYSED = """
import torch

def program(x):
    {body}

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5),)
"""


@pytest.mark.parametrize(
    ("function", "answer", "body", "shown"),
    [
        ("has_data_mutation", False, "x.mul_(2); return x.sin()", "input 0 is written to"),
        ("has_data_mutation", False, "x[1] = 7; return x * 3", "input 0 is written to"),
    ],
)
def test_what_aotautograd_says_of_inputs_is_named_where_a_run_contradicts_it(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch, function: str, answer: object, body: str, shown: str
):
    module = importlib.import_module(facts().aot_autograd.analysis.partition(":")[0])
    monkeypatch.setattr(module, function, lambda *_: answer)
    report = judge(write_case, ANALYSED.format(body=body))
    culprit = report["culprit"]
    assert report["is_bug"]
    assert (culprit["stage"], culprit["rewrite"]) == ("functionalization", aot_autograd.FUNCTION)
    assert shown in culprit["details"]["a run shows"]
    assert culprit["necessary"] is True  # with a graph break at the write


# A call that raises when its graph is run by itself.
RUN_AS_A_WHOLE = """
import torch

inside = False

@torch.compiler.allow_in_graph
def guard(x):
    if not inside:
        raise RuntimeError("only inside of the program")
    return x.sin()

def program(x):
    x.mul_(2)
    return guard(x)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5),)

def run(model, inputs):
    global inside
    inside = True
    try:
        return model(*inputs)
    finally:
        inside = False
"""


def test_a_graph_that_cannot_be_run_by_itself_leaves_a_note(write_case: WriteCase, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module(facts().aot_autograd.analysis.partition(":")[0])
    monkeypatch.setattr(module, "has_data_mutation", lambda *_: False)
    report = judge(write_case, RUN_AS_A_WHOLE)
    assert report["is_bug"] and report["confidence"] == "low"
    [note] = [note for note in report["evidence"]["notes"] if "a run of dynamo's graph by itself" in note]
    assert "RuntimeError: only inside of the program" in note
    assert note.endswith("contradictions of AOTAutograd's analysis were not seen")


WRITTEN = """
import torch

BACKWARD = True

def program(x, y):
    before = x.detach().clone()
    x.div_(y)
    return before

def make():
    torch.manual_seed(0)
    return program, (torch.rand(3, 5, requires_grad=True), torch.rand(3, 5) + 1)

def run(model, inputs):
    x, y = inputs
    written = x * 2
    return model(written, y), written
"""


def test_a_graph_that_is_not_differentiated_is_its_deciders_fault(write_case: WriteCase, monkeypatch: Any):
    """No result needs gradients, and what is written to an input that does is overlooked."""
    module, _, name = facts().aot_autograd.differentiation.partition(":")
    source = textwrap.dedent(inspect.getsource(getattr(decider := importlib.import_module(module), name)))
    planted = source.replace("and not x.mutations_under_no_grad", "and x.mutations_under_no_grad")
    scope: dict[str, Any] = {}
    exec(compile(planted, "planted.py", "exec", __future__.annotations.compiler_flag), vars(decider), scope)
    monkeypatch.setattr(decider, name, scope[name])
    report = judge(write_case, WRITTEN)
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("wrong_gradient", "functionalization", name)
    assert culprit["details"]["a run shows"] == ["input 0 requires gradients and is written to"]
    assert culprit["necessary"] is True


@pytest.mark.parametrize(
    "body",
    [
        "return x.chunk(2, 1)",
        "return x, x.t(), x.view(-1)",
        "x.add_(1); return x[1:]",
        "return x.detach().relu_()",
        "x.detach().mul_(2)\n    with torch.no_grad():\n        x.add_(1)\n    return x.detach().sin()",
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_a_run_agrees_with_what_aotautograd_says_of_right_programs(write_case: WriteCase, body: str, grad: bool):
    head = "GRAD = 'enabled'\n" if grad else ""
    case = load_case(write_case(head + ANALYSED.format(body=body)))
    said, *graph = capture(case)
    assert not list(aot_autograd.find_contradictions(said, *graph, grad=grad))
    assert grad or not list(aot_autograd.find_undifferentiated(*graph))


def capture(case: Case) -> tuple[MetadataAnalysis, Snapshot, Sequence[object]]:
    """What AOTAutograd says of a program's one graph, the graph, and its inputs."""
    (frame,) = Experiments(case, CPU).trial(Compilation(screen=True)).ledger.frames
    record = frame.find_record(PRE_GRAD)
    assert record is not None and frame.analysis is not None
    inputs = find_inputs(frame, record)
    assert inputs is not None
    return frame.analysis, record.snapshots[-1], inputs


def test_a_run_shows_which_inputs_keep_their_form(write_case: WriteCase):
    said, *graph = capture(load_case(write_case(ANALYSED.format(body="x.mul_(2); return x.sin()"))))
    wrong = replace(said, reshaped=[not reshaped for reshaped in said.reshaped])
    assert list(aot_autograd.find_contradictions(wrong, *graph, grad=False)) == ["input 0 keeps its sizes and strides"]


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t().mul_(3)
    y[0] = 1
    return y + 1


@pytest.mark.parametrize("left", ["mul_", operator.setitem], ids=["method", "setitem"])
def test_dynamo_leaves_a_method_to_eager_mode_and_compiles_the_rest(left: Any):
    x = torch.arange(6.0).reshape(2, 3)
    with (
        torch.no_grad(),
        open_session(CompileSettings(), make_compilation(backend="eager", disallowed=(left,))) as session,
    ):
        given = session.compile(written)(x)
    assert torch.equal(given, written(x))
    assert session.ledger.graphs == 2


def test_calls_at_a_line_have_the_names_that_a_user_gives_them():
    with torch.no_grad(), open_session(CompileSettings(), Compilation(screen=True)) as session:
        session.compile(written)(torch.arange(6.0).reshape(2, 3))
    first = written.__code__.co_firstlineno
    here = Path(__file__).name
    calls = [find_captured_calls(session.ledger, f"{here}:{first + line} #1", ()) for line in (2, 3)]
    assert calls == [
        {"torch.Tensor.t": "t", "torch.Tensor.mul_": "mul_"},
        {"operator.setitem": operator.setitem},
    ]


VIEWED = """
import torch

def program(x):
    y = x * 2
    y.diagonal().mul_(3)
    y[0].add_(1)
    return y

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 4),)
"""


def forgets_the_rest(base: torch.Tensor, written: torch.Tensor, *where: int) -> torch.Tensor:
    return torch.nn.functional.pad(torch.diag(written), (0, base.shape[1] - len(written)))


def test_a_view_that_loses_the_rest_of_its_base_is_found_whatever_writes_through_it(write_case: WriteCase):
    case = load_case(write_case(VIEWED))
    trial = Experiments(case, CPU).trial(Compilation(screen=True))
    (frame,) = trial.ledger.frames
    record = frame.find_record(PRE_GRAD)
    assert record is not None
    inputs = find_inputs(frame, record)
    assert inputs is not None
    assert find_lossy_views(record.snapshots[-1], inputs) == []
    library = torch.library.Library("aten", "IMPL")
    library.impl("diagonal_scatter", forgets_the_rest, "CPU")
    try:
        assert find_lossy_views(record.snapshots[-1], inputs) == ["diagonal"]
    finally:
        library._destroy()


DRAWN = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    x.t().exponential_(2.0)
    return x

def make():
    torch.manual_seed(0)
    return program, (torch.ones(4, 3),)
"""


def test_a_write_that_draws_other_numbers_once_it_is_functional_is_proved_by_leaving_the_method_out(
    write_case: WriteCase,
):
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "exponential", lambda x, rate=1.0, *, generator=None: torch.empty_like(x).exponential_(rate) + 1, "CPU"
    )
    try:
        report = judge(write_case, DRAWN)
    finally:
        library._destroy()
    culprit = report["culprit"]
    assert (report["verdict"], report["confidence"]) == ("miscompile", "high")
    assert (culprit["stage"], culprit["necessary"]) == ("functionalization", True)
    assert culprit["rewrite"] == "aten.exponential_.default"


DREW_ONE_MORE = """
import torch

OPTIONS = {"fallback_random": True}

def program(x):
    return torch.feature_dropout(x, 0.5, True)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 3, 2),)
"""


def test_a_traced_call_that_draws_one_number_more_is_found_by_the_state_that_it_leaves(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch
):
    call = torch.ops.aten.feature_dropout.default

    def draws_more(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        kept = torch.empty(x.shape[:2]).bernoulli_(1 - p).unsqueeze(-1) / (1 - p)
        return x * kept * torch.empty(1).bernoulli_(p).add(1).sign()  # times one

    monkeypatch.setitem(call.py_kernels, torch._C.DispatchKey.CompositeImplicitAutograd, draws_more)
    call._dispatch_cache.clear()
    try:
        report = judge(write_case, DREW_ONE_MORE)
    finally:
        call._dispatch_cache.clear()
    culprit = report["culprit"]
    assert report["verdict"] == "miscompile"
    assert report["evidence"]["outputs"][-1]["name"] == "random state after the call"
    assert (culprit["stage"], culprit["family"], culprit["necessary"]) == ("decomposition", "feature_dropout", True)
    assert culprit["details"]["kind"] == "numbers"


SEEDED = """
import torch

def program(x):
    torch.manual_seed(3)
    a = torch.rand(4)
    torch.manual_seed(3)
    return x + a - torch.rand(4)

def make():
    return program, (torch.zeros(4),)
"""


def test_a_call_that_aotautograd_loses_is_named_though_it_calls_no_operator(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "manual_seed", torch.random.manual_seed)
    monkeypatch.setitem(trace_rules.manual_torch_name_rule_map, "torch.manual_seed", TorchInGraphFunctionVariable)
    trace_rules.get_torch_obj_rule_map.cache_clear()
    try:
        report = judge(write_case, SEEDED)
    finally:
        monkeypatch.undo()
        trace_rules.get_torch_obj_rule_map.cache_clear()
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == (
        "miscompile",
        "functionalization",
        "torch.manual_seed",
    )
    assert culprit["necessary"] is True


CHECKED = """
import torch

CONFIG = {"dynamo": {"capture_scalar_outputs": True}}
FULLGRAPH = True

def program(a):
    n = a.item()
    torch._check(n < 5)
    return a * 10

def make():
    return program, (torch.tensor([3]),)
"""


def test_a_check_of_the_generated_program_that_fails_where_it_holds_is_proved_by_leaving_it_out(
    write_case: WriteCase, monkeypatch: pytest.MonkeyPatch
):
    source = textwrap.dedent(inspect.getsource(ir.AssertScalar.codegen)).replace("if not (", "if (")
    scope: dict[str, Any] = {}
    exec(compile(source, "planted.py", "exec", __future__.annotations.compiler_flag), vars(ir), scope)
    monkeypatch.setattr(ir.AssertScalar, "codegen", scope["codegen"])
    report = judge(write_case, CHECKED)
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("runtime_error", "codegen", "AssertScalar")
    assert culprit["necessary"] is True
    assert culprit["details"]["statement"].startswith("raise RuntimeError")


FLIPPED = """
import numpy as np
import torch

def program(x):
    return np.flip(x)

def make():
    return program, (np.arange(4.0),)
"""


def test_what_stands_for_a_function_of_numpy_goes_by_its_name(write_case: WriteCase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch._numpy._funcs_impl.flip, "__code__", (lambda m, axis=None: m * 2).__code__)
    report = judge(write_case, FLIPPED)
    culprit = report["culprit"]
    assert (report["verdict"], culprit["stage"], culprit["rewrite"]) == ("miscompile", "dynamo", "numpy.flip(ndarray)")


# In eager mode the result is the argument, so that the caller's tensor gets its gradient too.
GRADIENT_OF_A_COPY = """
import torch
from torch.nn import functional as F

BACKWARD = True

def program(x):
    return x, F.dropout(x, 0.3, training=False)

def run(model, inputs):
    with torch.no_grad():
        return model(*inputs)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 5, requires_grad=True),)
"""


def test_a_copy_in_the_place_of_an_argument_is_one_bug_whether_gradients_or_memory_show_it(
    write_case: Callable[..., Path],
):
    report = triage(load_case(write_case(GRADIENT_OF_A_COPY)), torch.device("cpu")).to_json()
    assert report["verdict"] == "wrong_gradient" and report["culprit"]["necessary"] is True
    assert report["signature"] == "decomposition:torch/_decomp/decompositions.py:dropout:sharing"
