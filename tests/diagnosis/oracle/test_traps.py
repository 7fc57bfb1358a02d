"""The traps of comparing numbers, each with a case that is fine and, where it can hide one, a bug behind it."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from seeing import judged, normal, rounded_runs, seen, wide
from torch import nn

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.diagnosis.engine import compare_warnings
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.observation import Failure, Observation

CPU = torch.device("cpu")
F32, BF16 = torch.float32, torch.bfloat16


def compiled(make, *, backward: bool = False) -> Judgement:
    """Judge a real compile of what ``make`` gives."""
    initialise_patterns(CPU)
    grad = "enabled" if backward else "no_grad"
    return Experiments(
        Case("case", Path("case.py"), "", make, grad, backward, CompileSettings(), None, None), CPU
    ).trial().judgement  # fmt: skip


def of(function, *inputs: torch.Tensor, backward: bool = False) -> Judgement:
    """Judge a real compile of ``function``."""
    given = [x.clone().requires_grad_(backward and x.is_floating_point()) for x in inputs]
    return compiled(lambda: (function, tuple(given)), backward=backward)


def close(judgement: Judgement) -> bool:
    """Whether there is nothing to find, and nothing that makes another look needed."""
    return not judgement.verdict.is_bug and not judgement.suspicious


# -- gradients that are exactly zero ----------------------------------------------------------------------


class KeyBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return F.softmax(self.q(x) @ self.k(x).transpose(-2, -1), -1) @ self.v(x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=pytest.mark.slow), BF16], ids=str)
def test_the_key_bias_under_a_softmax_has_no_gradient(dtype: torch.dtype):
    def make():
        torch.manual_seed(0)
        return KeyBias().to(dtype), (torch.randn(2, 6, 8).to(dtype),)

    judgement = compiled(make, backward=True)
    assert close(judgement)
    assert "gradient of parameter k.bias" in {c.name for c in judgement.comparisons}


def test_a_gradient_that_should_be_zero_and_is_not_is_wrong():
    large, zero = normal(8, 8), torch.zeros(8, dtype=torch.float64)
    exact = seen(large, zero, kind="gradient")
    eager = seen(large.float(), torch.full((8,), 3e-9), kind="gradient")
    assert judged(eager, seen(large.float(), torch.full((8,), 0.1), kind="gradient"), exact).verdict.is_bug
    assert close(judged(eager, seen(large.float(), torch.full((8,), 9e-8), kind="gradient"), exact))


# -- indices and steps ------------------------------------------------------------------------------------


def flips(x):
    y = torch.sin(x * 40.0).mean(-1, keepdim=True) + x
    return (
        (y * 1000).floor(), (y * 1000).round(), y > y.roll(1, 0), y.argmax(-1), y.topk(3, -1).indices, y.argsort(-1),
        torch.sort(y, -1).indices, (y * 100).long(), torch.sign(y - y.mean()), y == y.roll(1, 1),
    )  # fmt: skip


@pytest.mark.slow
def test_steps_and_indices_of_a_real_compile():
    near_ties = normal(32, 1).float() + 1e-7 * normal(32, 40, seed=1).float()
    for x in (normal(32, 40).float(), near_ties):
        judgement = of(flips, x)
        assert not judgement.verdict.is_bug, judgement.worst


@pytest.mark.parametrize("function", [torch.floor, torch.round], ids=lambda f: f.__name__)
@pytest.mark.parametrize("edge", [False, True])
def test_a_step_that_one_ulp_decides(function, edge: bool):
    exact = normal(100) * 10
    if edge:
        exact[7] = 3.0 if function is torch.floor else 2.5
    eager, *noisy = (function(x) for x in rounded_runs(exact, F32))
    other = eager.clone()
    other[7] = next((run[7] for run in noisy if run[7] != eager[7]), eager[7] + 1)
    judgement = judged(seen(eager), seen(other), seen(function(exact)), [seen(run) for run in noisy])
    assert judgement.verdict.is_bug != edge


def test_an_index_among_near_ties():
    values = torch.ones(64, 8, dtype=torch.float64) + 1e-7 * normal(64, 8)
    eager, *noisy = (run.argmax(-1) for run in rounded_runs(values, F32))
    other = rounded_runs(values, F32, 5)[-1].argmax(-1)
    assert not torch.equal(eager, other)
    judgement = judged(seen(eager), seen(other), seen(values.argmax(-1)), [seen(n) for n in noisy])
    assert judgement.verdict is Verdict.UNSTABLE


def test_an_index_without_a_tie():
    values = normal(64, 8)
    eager, *noisy = (run.argmax(-1) for run in rounded_runs(values, F32))
    other = eager.clone()
    other[5] = (other[5] + 1) % 8
    judgement = judged(seen(eager), seen(other), seen(values.argmax(-1)), [seen(n) for n in noisy])
    assert judgement.verdict is Verdict.MISCOMPILE


# -- programs without correct digits ----------------------------------------------------------------------


def one_pass_variance(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


ILL = {
    "absorption": (lambda x: (x + 1e4) - 1e4, lambda: normal(16, 64).float()),
    "total absorption": (lambda x: (x * 1e-3 + 1e8) - 1e8, lambda: normal(16, 64).float()),
    "one-pass variance": (one_pass_variance, lambda: normal(16, 64).float() + 1000),
    "near-singular inverse": (
        lambda x: torch.linalg.inv(x * 1.0000001),
        lambda: (torch.ones(8, 8, dtype=torch.float64) + 1e-6 * normal(8, 8)).float(),
    ),
    "difference of sums": (lambda x: x.exp().sum(-1) - x.flip(-1).exp().sum(-1), lambda: 5 * normal(16, 64).float()),
    "log of nearly one": (lambda x: torch.log(1 + x * 1e-7), lambda: normal(16, 64).float()),
    "large angles": (lambda x: torch.sin((x * 1.1 + 0.3) * 1e5), lambda: normal(16, 64).float()),
    "iterated": (lambda x: [x := (x * 7.3) % 1 for _ in range(12)][-1], lambda: normal(16, 64).float().sigmoid()),
}


@pytest.mark.parametrize("name", ILL)
def test_ill_conditioned_programs_accuse_nobody(name: str):
    function, make = ILL[name]
    judgement = of(function, make())
    assert not judgement.verdict.is_bug, judgement.worst


# -- low-precision casts ----------------------------------------------------------------------------------


def casts(x, w):
    y = (x.to(BF16) @ w.to(BF16)).float()
    z = F.gelu(y).to(torch.float16).float() + x
    return z.to(BF16).float() * 1.1, torch.softmax(z.to(BF16), -1), (z * 3).half().float().sum(-1)


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_low_precision_casts_of_the_program(backward: bool):
    judgement = of(casts, normal(16, 32).float(), normal(32, 32, seed=1).float() / 6, backward=backward)
    assert close(judgement), judgement.worst


# -- small numbers, single elements, NaN and infinities ---------------------------------------------------


@pytest.mark.parametrize("scale", [1e-5, 1e-20, 1e-30])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_small_outputs_are_held_to_their_size(scale: float, dtype: torch.dtype):
    exact = normal(30, 30) * scale
    eager, *noisy = rounded_runs(exact, dtype)
    right = rounded_runs(exact, dtype, 5)[-1]
    noise = [seen(run) for run in noisy]
    assert close(judged(seen(eager), seen(right), seen(exact), noise))
    for wrong in (-eager, eager * 2, torch.zeros_like(eager), eager.roll(1, 0)):
        assert judged(seen(eager), seen(wrong), seen(exact), noise).verdict is Verdict.MISCOMPILE


def test_small_outputs_of_a_real_compile():
    assert close(of(lambda x: (torch.sin(x) * 1e-20, x.softmax(-1) * 1e-5, x * 1e-38 * 1e-3), normal(20, 30).float()))


@pytest.mark.parametrize(("dtype", "wrong"), [(F32, 0.1), (F32, -1e-4), (torch.float16, 0.1), (BF16, 0.3)], ids=str)
def test_one_element_in_a_million(dtype: torch.dtype, wrong: float):
    exact = normal(1000, 1000)
    eager, noisy = rounded_runs(exact, dtype, 2)
    compiled_run = eager.clone()
    at = int((exact.abs() - 0.5).abs().argmin())
    compiled_run.view(-1)[at] += wrong
    judgement = judged(seen(eager), seen(compiled_run), seen(exact), [seen(noisy)])
    assert judgement.verdict is Verdict.MISCOMPILE
    assert judgement.worst.where == tuple(divmod(at, 1000))


@pytest.mark.parametrize("shared", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_what_is_not_finite_in_all_runs_hides_nothing(shared: float, dtype: torch.dtype):
    exact = normal(40, 40)
    exact[0, 0] = exact[7] = shared
    eager, *noisy = rounded_runs(exact, dtype)
    noise = [seen(run) for run in noisy]
    right = rounded_runs(exact, dtype, 5)[-1]
    assert close(judged(seen(eager), seen(right), seen(exact), noise))
    wrong = right.clone()
    wrong[3, 3] += 1
    assert judged(seen(eager), seen(wrong), seen(exact), noise).verdict is Verdict.MISCOMPILE
    assert judged(seen(eager), seen(right * 1.02), seen(exact), noise).verdict is Verdict.MISCOMPILE
    finite = right.clone()
    finite[7, 7] = 0.0
    assert judged(seen(eager), seen(finite), seen(exact), noise).verdict is Verdict.NONFINITE
    if math.isinf(shared):
        assert judged(seen(eager), seen(torch.where(right == shared, -right, right)), seen(exact)).verdict.is_bug


def test_rows_of_nan_of_a_real_compile():
    def masked(x):
        scores = x @ x.t()
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(0), float("-inf"))
        return scores.softmax(-1), scores.logsumexp(-1), scores

    assert close(of(masked, normal(16, 16).float()))


# -- values of every kind ---------------------------------------------------------------------------------


def test_integers_and_booleans_are_exact():
    i, b = torch.arange(100), torch.arange(100) % 3 == 0
    assert judged(seen(i, b), seen(i.clone(), b.clone())).verdict is Verdict.EQUAL
    assert judged(seen(i, b), seen(i, b.logical_not())).verdict is Verdict.MISCOMPILE
    assert judged(seen(i, b), seen(torch.where(i == 5, 6, i), b)).verdict is Verdict.MISCOMPILE
    small = torch.arange(-5, 5, dtype=torch.int8)
    assert judged(seen(small), seen(small.to(torch.int16))).verdict is Verdict.METADATA
    assert judged(seen(b), seen(b.to(torch.uint8))).verdict is Verdict.METADATA


def test_complex_numbers():
    exact = torch.complex(normal(20, 20), normal(20, 20, seed=1))
    eager = exact.to(torch.complex64)
    close_by = eager.clone()
    close_by[::3] *= 1 + 1e-7
    assert close(judged(seen(eager), seen(close_by), seen(exact), [seen(eager * (1 - 2e-7))]))
    for wrong in (eager.conj().resolve_conj(), eager * 1j, eager.real + 0j):
        assert judged(seen(eager), seen(wrong), seen(exact)).verdict is Verdict.MISCOMPILE
    hole = eager.clone()
    hole[1, 1] = complex(math.nan, 0)
    assert judged(seen(eager), seen(hole), seen(exact)).verdict is Verdict.NONFINITE


def test_complex_outputs_of_a_real_compile():
    def rotary(x):
        z = torch.view_as_complex(x.view(16, 8, 2))
        return z * torch.polar(torch.ones(8), torch.arange(8.0)), torch.view_as_real(z * 1j).flatten(1)

    assert close(of(rotary, normal(16, 16).float()))


def test_scalars():
    x = torch.tensor(0.1)
    assert close(judged(seen(x, 0.1, 3, True, None, "a", 1 + 2j), seen(x.clone(), 0.1, 3, True, None, "a", 1 + 2j)))
    for index, wrong in enumerate((torch.tensor(0.2), 0.2, 4, False, 0, "b", 1 - 2j)):
        values: list = [x, 0.1, 3, True, None, "a", 1 + 2j]
        values[index] = wrong
        assert judged(seen(x, 0.1, 3, True, None, "a", 1 + 2j), seen(*values)).verdict.is_bug, index


def test_empty_tensors():
    x = torch.empty(0, 3)
    assert judged(seen(x), seen(torch.empty(0, 3))).verdict is Verdict.EQUAL
    assert judged(seen(x), seen(torch.empty(3, 0))).verdict is Verdict.METADATA
    assert judged(seen(x), seen(torch.empty(0, 3, dtype=BF16))).verdict is Verdict.METADATA
    assert close(
        of(lambda x: (x[:0] * 2, x[:, :0].sum(-1), x[:0].mean(0), torch.cat([x[:0], x])), normal(4, 5).float())
    )


def test_none_and_numbers_of_outputs():
    x = normal(3).float()
    assert judged(seen(x, None), seen(x, None)).verdict is Verdict.EQUAL
    assert judged(seen(x, None), seen(x, x)).verdict.is_bug
    assert judged(seen(x, x), seen(x)).verdict is Verdict.METADATA
    assert judged(seen(x), seen(x, x)).verdict is Verdict.METADATA


# -- containers -------------------------------------------------------------------------------------------


Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    hidden: torch.Tensor
    rest: list
    nothing: None = None


@dataclass
class ModelOutput(OrderedDict):
    """What Hugging Face returns, without its entry in pytree's table."""

    logits: torch.Tensor | None = None
    states: tuple | None = None

    def __post_init__(self):
        for entry in fields(self):
            if getattr(self, entry.name) is not None:
                OrderedDict.__setitem__(self, entry.name, getattr(self, entry.name))


class Named(dict):
    """A dictionary of a class of its own."""


STRUCTURES = {
    "nested": lambda x, y: {"a": [x, (y, {"b": x + y})], "c": None},
    "named tuple": lambda x, y: Pair(x, Pair(y, 3)),
    "dataclass": lambda x, y: Result(x, [y, {"z": x}]),
    "model output": lambda x, y: ModelOutput(x, (y, x)),
    "subclass of dict": lambda x, y: Named(a=x, b=[y]),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_outputs_in_containers_of_a_real_compile(name: str):
    judgement = of(lambda x: STRUCTURES[name](x * 2, x + 1), normal(3, 4).float())
    assert close(judgement), judgement.detail
    assert sum(c.kind == "output" for c in judgement.comparisons) >= 2


@dataclass
class Batch:
    tokens: torch.Tensor
    mask: torch.Tensor | None = None


@pytest.mark.parametrize("kind", [Batch, Named, ModelOutput], ids=lambda kind: kind.__name__)
def test_inputs_in_containers_of_a_real_compile(kind: type):
    def make():
        x = normal(4, 6).float()
        return program, (kind(tokens=x) if kind is not ModelOutput else kind(logits=x),)

    def program(batch):
        x = batch["tokens"] if isinstance(batch, Named) else batch.logits if kind is ModelOutput else batch.tokens
        x.mul_(2)
        return torch.sin(x) + 1

    judgement = compiled(make)
    assert close(judgement), judgement.detail
    kinds = {c.kind for c in judgement.comparisons}
    assert kinds == {"output", "mutation"}
    assert max(c.max_abs_error_eager for c in judgement.comparisons if c.kind == "output") < 1e-6


def test_odd_layouts_reach_the_program_as_they_are():
    base = normal(6, 8).float()
    inputs = (
        base.t(),
        base[:, ::2],
        base[:1].expand(5, 8),
        base,
        base[2:],
        base.view(-1)[3:].as_strided((3, 3), (2, 1)),
    )

    def program(*xs):
        assert [x.stride() for x in xs] == [(1, 8), (8, 2), (0, 1), (8, 1), (8, 1), (2, 1)]
        xs[3].add_(1)  # seen through all of them
        return [x * 2 for x in xs]

    judgement = compiled(lambda: (program, inputs))
    assert close(judgement), (judgement.detail, judgement.worst)
    assert len([c for c in judgement.comparisons if c.kind == "mutation"]) == len(inputs)


# -- exceptions and warnings ------------------------------------------------------------------------------


def failed(name: str, message: str, **more) -> Observation:
    return Observation(failure=Failure(name, message), **more)


def test_both_exceptions_are_named():
    judgement = judged(failed("ValueError", "bad size"), failed("IndexError", "out of range"), Observation())
    assert judgement.verdict is Verdict.INVALID
    assert judgement.detail == "eager raises ValueError: bad size; compiled raises IndexError: out of range"


def test_the_same_exception_is_named_once():
    judgement = judged(failed("ValueError", "bad size"), failed("ValueError", "bad size"), Observation())
    assert judgement.detail == "eager raises ValueError: bad size; compiled too"


def test_exceptions_of_a_real_compile():
    def program(x):
        if x.shape[0] == 4:
            raise ValueError("four")
        return x * 2

    judgement = of(program, normal(4).float())
    assert judgement.verdict is Verdict.INVALID
    assert "ValueError: four" in judgement.detail


def test_warnings_that_only_one_gave():
    both, one = "UserWarning: both", "UserWarning: one"
    eager = Observation(warnings=(both, one))
    assert compare_warnings(eager, Observation(warnings=(both,))) == (f"only eager: {one}",)
    assert compare_warnings(Observation(warnings=(both,)), eager) == (f"only compiled: {one}",)
    assert compare_warnings(eager, eager) == ()


def test_warnings_of_a_real_compile_are_those_of_the_program():
    initialise_patterns(CPU)

    def make():
        return (lambda x: torch.sin(x) @ x.t()), (normal(4, 4).float(),)

    case = Case("case", Path("case.py"), "", make, "no_grad", False, CompileSettings(), None, None)
    experiments = Experiments(case, CPU)
    assert compare_warnings(experiments.runs.eager, experiments.trial().observation) == ()


def test_the_reference_stands_beside_the_native_run():
    assert wide(seen(torch.ones(2))).values[0].value.dtype == torch.float64
