"""Aliases: eager against compiled, from made observations and from real compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from seeing import judged, normal, seen

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.observation import Observation, Value

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("eager", "compiled", "detail"),
    [
        (["input0"], [], "eager: out0 shares memory with input0; compiled: a copy"),
        ([], ["input0"], "eager: out0 is a copy; compiled: shares memory with input0"),
        (
            ["input0", "out1"],
            ["input0"],
            "eager: out0 shares memory with out1; compiled: shares memory with input0 only",
        ),
        (
            ["a", "b", "c", "d", "e"],
            [],
            "eager: out0 shares memory with a, b, c and 2 more; compiled: a copy",
        ),
    ],
)
def test_a_difference_is_told(eager: list[str], compiled: list[str], detail: str):
    x = normal(4).float()
    judgement = judged(seen(x, aliases=[tuple(eager)]), seen(x, aliases=[tuple(compiled)]))
    assert judgement.verdict is Verdict.ALIASING
    assert judgement.worst.finding == "alias"
    assert judgement.worst.detail == detail


def test_the_order_of_aliases_is_nobodys_business():
    x = normal(4).float()
    assert judged(seen(x, aliases=[("a", "b")]), seen(x, aliases=[("b", "a")])).verdict is Verdict.EQUAL


def test_aliases_of_the_reference_do_not_matter():
    x = normal(4).float()
    judgement = judged(seen(x, aliases=[("a",)]), seen(x, aliases=[("a",)]), seen(x.double()))
    assert judgement.verdict is Verdict.EQUAL


def test_wrong_values_come_first():
    x = normal(4).float()
    assert judged(seen(x, aliases=[("a",)]), seen(x + 1)).verdict is Verdict.MISCOMPILE


def test_rounding_beside_a_lost_alias_is_aliasing():
    x = normal(4).float()
    assert judged(seen(x, aliases=[("a",)]), seen(x * (1 + 2**-23))).verdict is Verdict.ALIASING


def test_an_alias_counts_more_than_a_stride():
    x = normal(4, 5).float()
    turned = x.t().contiguous().t()
    assert judged(seen(x, aliases=[("a",)]), seen(turned)).verdict is Verdict.ALIASING


def test_a_buffer_that_compiled_does_not_make_share_memory():
    x = Value("buffer cache after the call", normal(4).float(), "mutation", aliases=("input0",))
    judgement = judged(Observation((x,)), Observation())
    assert judgement.verdict is Verdict.ALIASING
    lost = Value(x.name, x.value, "mutation")
    judgement = judged(Observation((x,)), Observation((lost,)))
    assert judgement.verdict is Verdict.ALIASING
    assert "input0" in judgement.worst.detail


# -- real compiles ----------------------------------------------------------------------------------------


def compiled(function, *, grad: bool = False) -> Judgement:
    def make():
        torch.manual_seed(0)
        return function, (torch.randn(4, 6, requires_grad=grad),)

    initialise_patterns(CPU)
    mode = "enabled" if grad else "no_grad"
    case = Case("case", Path("case.py"), "", make, mode, False, CompileSettings(), None, None)
    return Experiments(case, CPU).trial().judgement


def of_input(x):
    return (
        x, x.t(), x[1:], x.detach(), x[:1].expand(3, 6), *x.chunk(2, 1), x.clone(), x.reshape(-1), x.contiguous(),
        x.to(torch.float32), x.t().contiguous(), x + 0, x * 1, F.dropout(x, 0.0, False).add(1), x.numpy().copy()
        if not x.requires_grad else x.view(-1), x.unsqueeze(0), x.t().t(), F.pad(x, (0, 0)), torch.cat([x]),
    )  # fmt: skip


def of_intermediate(x):
    y = x * 2
    return (
        y, y.view(-1), y[0], y[1:], *y.unbind(0), y.detach(), y.clone(), y.clone(), y.contiguous(), y.t().contiguous(),
        y.reshape(6, 4), y.expand(2, 4, 6), y + 1, y + 1, torch.zeros(3), torch.zeros(3), y.flatten(), y.type_as(x),
    )  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [of_input, of_intermediate], ids=lambda f: f.__name__)
def test_clean_programs_keep_their_aliases(function, grad: bool):
    judgement = compiled(function, grad=grad)
    assert not judgement.verdict.is_bug, judgement.worst


needs_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="bugs of torch 2.13")


@needs_2_13
def test_dropout_that_drops_nothing_loses_its_alias():
    judgement = compiled(lambda x: F.dropout(x, 0.5, False))  # pytorch#115249
    assert judgement.verdict is Verdict.ALIASING
    assert judgement.worst.detail == "eager: out0 shares memory with input0; compiled: a copy"


@needs_2_13
def test_adding_zeros_hands_out_the_input():
    judgement = compiled(lambda x: x + torch.zeros_like(x))  # pytorch#197893
    assert judgement.verdict is Verdict.ALIASING
    assert judgement.worst.detail == "eager: out0 is a copy; compiled: shares memory with input0"


def test_a_graph_that_is_recorded_may_reuse_the_memory_of_its_outputs():
    def observed(*aliases: str) -> Observation:
        names = ("call0.out0", "call0.out1", "call1.out0")
        shared = ((), ("call0.out0",), aliases)
        return Observation(
            tuple(Value(name, normal(4), "output", (1,), own) for name, own in zip(names, shared, strict=True))
        )

    def kept(eager: Observation, compiled: Observation) -> tuple[str, ...]:
        values = compiled.drop_reused_memory(eager).index_by_name()
        assert values["call0.out1"].aliases == ("call0.out0",)
        return values["call1.out0"].aliases

    assert kept(observed(), observed("call0.out1", "call1.input0")) == ("call1.input0",)
    assert kept(observed("call0.out1"), observed("call0.out1")) == ("call0.out1",)


def test_a_change_of_the_size_of_rounding_is_no_lost_write():
    """A mean that is zero but for rounding is added to a buffer; compiled gets zero, and the buffer stays as it is."""
    before = torch.ones(3)
    moved, real = (Value("buffer total", before + step, "mutation", before=before) for step in (1e-7, 0.5))
    for write, verdict in ((moved, Verdict.ROUNDING), (real, Verdict.ALIASING)):
        exact = Observation((replace(write, value=before.double() + (write.value - before).double() * 0.9),))
        assert judged(Observation((write,)), Observation(()), exact).verdict is verdict
        assert judged(Observation(()), Observation((write,)), Observation(())).verdict is verdict
