"""Settings that promise something: a case that asks for them is held to the promise, and only such a case."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from torch._inductor import compile_fx, lowering
from torch._inductor.virtualized import V

from fuzzcompile.diagnosis.bitwise.promises import find_promises, judge_own_promises
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.worker.minimization import judge_source, probe_candidate
from fuzzcompile.model.contract import find_broken_promise
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.ir.case_source import CaseText

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
aten = torch.ops.aten
HEAD = "import torch\nimport torch.nn.functional as F\n"
MAKE = "\ndef make():\n    torch.manual_seed(0)\n    return program, (torch.randn(4, 8{}),)\n"
EAGER_NUMBERS = 'CONFIG = {"inductor": {"fallback_random": True}}\n'
PROMISE = "fallback_random: eager's own numbers"


@pytest.fixture
def judged(write_case):
    def judge(expression: str, settings: str = EAGER_NUMBERS, *, trained: bool = False, **how):
        program = f"def program(x):\n    return {expression}\n"
        make = MAKE.format(", requires_grad=True") + "BACKWARD = True\n" if trained else MAKE.format("")
        return triage(load_case(write_case(HEAD + settings + program + make)), CPU, JudgeTask(**how))

    return judge


# -- eager's own random numbers -----------------------------------------------------------------------


@pytest.mark.parametrize("trained", [False, True], ids=["forward", "trained"])
@pytest.mark.parametrize(
    "expression",
    [
        "F.dropout(x.sin(), 0.3) + torch.rand_like(x.t()).t()",
        "x.sin()[:, torch.randperm(8)] * torch.randint(0, 9, (8,)) + torch.empty_like(x).exponential_()",
    ],
)
def test_who_keeps_the_promise_is_clean(judged, expression: str, trained: bool):
    report = judged(expression, trained=trained, screen=True)
    assert report.verdict in ("equal", "rounding")
    assert report.promise is None
    assert "random state after the call" in {c.name for c in report.comparisons}


def test_other_numbers_of_the_right_distribution_are_a_bug_and_named(judged, monkeypatch):
    table, drawn = compile_fx.select_decomp_table, aten.exponential.default

    def exponential(x: torch.Tensor, lambd: float = 1.0, generator: object = None) -> torch.Tensor:
        return -torch.log1p(-torch.rand_like(x)) / lambd

    monkeypatch.setattr(compile_fx, "select_decomp_table", lambda: {**table(), drawn: exponential})
    report = judged("torch.empty_like(x).exponential_(2.0) + x")
    assert (report.verdict, report.promise) == ("miscompile", PROMISE)
    culprit = report.attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("decomposition", str(drawn), True)
    assert not judged("torch.empty_like(x).exponential_(2.0) + x", "", screen=True).is_bug


@pytest.mark.slow
def test_a_lowering_that_draws_twice_is_named(judged, monkeypatch):
    lowered = lowering.lowerings[aten.rand.default]

    def twice(size, **rest):
        lowered(size, **rest)
        return lowered(size, **rest)

    monkeypatch.setitem(lowering.lowerings, aten.rand.default, twice)
    report = judged("torch.rand(4, 8) + x.sin()")
    assert (report.verdict, report.promise) == ("miscompile", PROMISE)
    culprit = report.attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("lowering", "aten.rand.default", True)


@pytest.mark.slow
def test_a_backward_pass_that_draws_once_more_shows_in_the_random_state(judged):
    report = judged("torch.bernoulli(x.sigmoid())", trained=True)
    assert (report.verdict, report.promise) == ("miscompile", PROMISE)
    assert {c.name: c.finding for c in report.comparisons}["random state after the call"] == "integer"
    assert report.attribution.culprit.stage == "partition"


# -- equal bits ---------------------------------------------------------------------------------------

CASTS = 'CONFIG = {"inductor": {"emulate_precision_casts": True}}\n'
CHAIN = "def program(x):\n    return (x * x + x).sub(0.25).mul(x)\n"
SHORT = "\ndef make():\n    torch.manual_seed(0)\n    return program, (torch.randn(4, 64).bfloat16(),)\n"


@contextlib.contextmanager
def unrounded():
    """Products, sums and differences whose results stay in float32 whatever the settings say."""
    operators = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor)
    lowered = {operator: lowering.lowerings[operator] for operator in operators}

    def without_barrier(lower, *arguments):
        V.graph.current_node.meta.pop("low_precision_pointwise_barrier", None)
        return lower(*arguments)

    try:
        for operator, lower in lowered.items():
            lowering.lowerings[operator] = functools.partial(without_barrier, lower)
        yield
    finally:
        lowering.lowerings.update(lowered)


@pytest.mark.slow
def test_casts_that_are_promised_and_elided_are_named(write_case):
    case = load_case(write_case(HEAD + CASTS + CHAIN + SHORT))
    with unrounded():
        report = judge_own_promises(case, CPU, triage(case, CPU), deadline=None)
    assert report.verdict == "precision_loss"
    assert report.promise.startswith("emulate_precision_casts: ")
    assert (report.attribution.culprit.stage, report.attribution.culprit.rewrite) == ("lowering", "aten.mul.Tensor")


@pytest.mark.slow
def test_a_reduction_holds_candidates_to_the_broken_promise():
    source = HEAD + CASTS + CHAIN + SHORT
    with unrounded():
        report = judge_source(source)
        target = SignatureLock.of(report)
        asked = {text: probe_candidate(CaseText(text, {}), target) for text in (
            source.replace("return (x * x + x).sub(0.25).mul(x)", "return x * x + x"),
            source.replace("return (x * x + x).sub(0.25).mul(x)", "return x.sub(0.25).add(x)"),
            source.replace(CASTS, ""),
        )}  # fmt: skip
    assert report["verdict"] == "precision_loss" and not target.screens
    assert target.promise == report["evidence"]["promise"] is not None
    assert [probed.matches for probed in asked.values()] == [True, False, False]
    assert [probed.is_bug for probed in asked.values()] == [True, True, False]


def test_bits_alone_are_at_stake_where_a_promise_is_broken_and_no_value_is_wrong():
    evidence = {"promise": "emulate_precision_casts: kept", "outputs": [{"finding": "close"}]}
    report = {"verdict": "precision_loss", "evidence": evidence}
    assert find_broken_promise(report) == evidence["promise"]
    assert find_broken_promise({**report, "evidence": {**evidence, "outputs": [{"finding": "far"}]}}) is None
    assert find_broken_promise({**report, "verdict": "accepts_invalid"}) is None


def test_equal_bits_need_no_further_compile_and_no_setting_means_no_promise(write_case):
    case = load_case(write_case(HEAD + CASTS + CHAIN + SHORT))
    report = triage(case, CPU)
    assert (report.verdict, judge_own_promises(case, CPU, report, deadline=None)) == ("equal", report)
    plain = load_case(write_case(HEAD + CHAIN + SHORT))
    assert find_promises(plain, CPU, rounding=True) == {}
    assert list(find_promises(case, CPU, rounding=True)) == ["eager"]


def test_casts_are_promised_where_there_is_something_to_cast(write_case):
    single = SHORT.replace(".bfloat16()", "")
    assert find_promises(load_case(write_case(HEAD + CASTS + CHAIN + single)), CPU, rounding=True) == {}
    inside = HEAD + CASTS + "def program(x):\n    return x.half().mul(3).float() + x\n" + single
    assert list(find_promises(load_case(write_case(inside)), CPU, rounding=True)) == ["eager"]


def test_deterministic_algorithms_promise_the_same_bits_again(write_case):
    case = load_case(write_case(HEAD + CHAIN + SHORT))
    torch.use_deterministic_algorithms(True)
    try:
        assert list(find_promises(case, CPU, rounding=False)) == ["run_to_run"]
    finally:
        torch.use_deterministic_algorithms(False)


# -- errors that were asked for -----------------------------------------------------------------------


def test_a_recompile_that_was_to_be_an_error_is_no_bug(judged):
    settings = 'DYNAMIC = False\nCONFIG = {"dynamo": {"error_on_recompile": True}}\nCALLS = [(torch.ones(4, 7),)]\n'
    with pytest.raises(CannotJudge, match="asks for error_on_recompile"):
        judged("x.sin()", settings)


@pytest.mark.slow
def test_a_graph_break_in_what_was_to_be_one_graph_is_a_bug(judged, monkeypatch):
    optimize = torch._dynamo.optimize
    monkeypatch.setattr(torch._dynamo, "optimize", lambda *a, **k: optimize(*a, **{**k, "nopython": False}))
    report = judged("(torch._dynamo.graph_break(), x.sin())[1].cos()", "FULLGRAPH = True\n")
    assert report.verdict == "accepts_invalid"
    assert report.promise == "fullgraph: an error in place of a graph break"
