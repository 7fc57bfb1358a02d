"""One value against another: integers bit by bit, Python numbers as tensors, objects by their own word."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from seeing import judged

from fuzzcompile.diagnosis.oracle.judgement import compare
from fuzzcompile.model.severity import Severity, rate_severity
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.observation import Observation, Value


def output(value, **more) -> Value:
    return Value("out0", value, "output", **more)


def finding(eager, compiled) -> str:
    return compare(output(eager), output(compiled), None, ()).finding


def number(value: float, precision: torch.dtype = torch.float32) -> Value:
    return output(value, precision=precision)


@pytest.mark.parametrize("apart", [1, -1])
def test_large_integers_are_compared_exactly(apart: int):
    x = torch.tensor([0, 2**60, 2**53])
    assert finding(x, x.clone()) == "same"
    comparison = compare(output(x), output(x + torch.tensor([0, apart, 0])), None, ())
    assert comparison.finding == "integer"
    assert comparison.max_abs_error_compiled == 1
    assert comparison.where == (1,)


def test_booleans_are_compared_exactly():
    x = torch.tensor([True, False])
    assert finding(x, x.clone()) == "same"
    assert finding(x, ~x) == "integer"


def test_python_floats_may_differ_by_what_rounding_explains():
    exact, eager, noisy = number(3.00000012, torch.float64), number(3.0000002), number(3.0000007)
    close = compare(eager, number(3.0000005), exact, [noisy])
    assert close.finding == "close"
    assert close.noise_floor > 0
    assert compare(eager, number(3.1), exact, [noisy]).finding == "far"
    assert compare(eager, eager, exact, [noisy]).finding == "same"


def test_python_complex_numbers_are_compared_as_tensors():
    eager = output(1 + 2j, precision=torch.float32)
    assert compare(eager, replace(eager, value=1 + 2.0000001j), None, ()).finding in ("same", "close")
    assert compare(eager, replace(eager, value=1 - 2j), None, ()).finding == "far"


def test_floats_that_float32_does_not_have_are_not_infinite():
    assert compare(number(1e300), number(2e300), None, ()).finding == "far"


def test_nan_is_nan_and_infinity_is_infinity():
    assert finding(float("nan"), float("nan")) == "same"
    assert finding(float("inf"), float("inf")) == "same"
    assert finding(1.0, float("nan")) == "nonfinite"


def test_an_overflow_that_eager_makes_nan_of_may_be_infinite():
    exact = output(torch.tensor([-1e30, 0.0], dtype=torch.float64))
    eager = output(torch.tensor([torch.nan, torch.nan], dtype=torch.float16))
    for compiled, expected in (([-torch.inf, 0.0], "wild"), ([torch.inf, 0.0], "nonfinite")):
        other = output(torch.tensor(compiled, dtype=torch.float16))
        assert compare(eager, other, exact, ()).finding == expected


def test_an_infinity_is_no_news_where_eager_has_no_digit_right():
    # 0 to the power of what eager rounds to zero, float64 does not, and the compiler rounds to below zero.
    exact = output(torch.tensor([0.0, 2.0], dtype=torch.float64))
    compiled = output(torch.tensor([torch.inf, 2.0]))
    for eager, expected in (([1.0, 2.0], "wild"), ([0.0, 2.0], "nonfinite"), ([1e-6, 2.0], "nonfinite")):
        assert compare(output(torch.tensor(eager)), compiled, exact, ()).finding == expected


def test_a_change_of_type_is_a_finding():
    assert finding(3, 3.0) == "dtype"
    assert finding(3, 4) == "integer"
    assert finding(3, 4.0) == "integer"
    assert finding(None, torch.ones(2)) == "integer"
    assert compare(output(torch.ones(2), form="ndarray"), output(torch.ones(2)), None, ()).finding == "dtype"


class Plain:
    pass


class Other:
    pass


def test_objects_that_cannot_be_compared_are_the_same_if_their_types_are():
    assert finding(Plain(), Plain()) == "same"
    assert finding(Plain(), Other()) == "integer"
    assert finding("a", "a") == "same"
    assert finding("a", "b") == "integer"


def test_an_element_is_wrong_only_if_itself_is_beyond_rounding_and_tolerance():
    torch.manual_seed(0)
    # Rows of another scale, as the gradient of position embeddings has them; rounding of the last column is seen well.
    exact = torch.randn(17, 64, dtype=torch.float64) * torch.tensor([1.0, *[1e-3] * 16]).unsqueeze(1)
    exact[0, 0], exact[0, -1] = 0.5, 1e-4
    eager = exact.clone()
    noisy = exact.clone()
    noisy[0, -1] += 1e-6
    compiled = exact.clone()
    compiled[0, 0] += 1e-6  # beyond what rounding was seen to do there, and within tolerance
    compiled[0, -1] += 2e-6  # beyond tolerance, and within rounding
    runs = [output(run.float()) for run in (eager, compiled)]
    comparison = compare(*runs, output(exact), [output(noisy.float())])
    assert comparison.finding == "far" and comparison.where == (0, 0)
    assert comparison.within_scaled_tolerance
    compiled[0, 0] += 1e-3
    beyond = compare(runs[0], output(compiled.float()), output(exact), [output(noisy.float())])
    assert beyond.finding == "far" and not beyond.within_scaled_tolerance


@pytest.mark.parametrize(
    ("eager", "compiled", "raises"),
    [
        ((3, 1), (1, 2), True),  # eager lies one behind the other, and compiled cannot be viewed flat
        ((3, 1), (6, 2), False),  # every second element of a line: `view(-1)` runs
        ((1, 2), (3, 1), False),  # the compiled one is the plainer
    ],
)
def test_a_layout_raises_where_view_ran_and_does_no_more(eager, compiled, raises):
    values = torch.arange(6.0).reshape(2, 3)
    outputs = [output(values, stride=stride) for stride in (eager, compiled)]
    comparison = compare(*outputs, outputs[0], [])
    assert (comparison.finding, comparison.view_raises) == ("stride", raises)
    report = {"verdict": "metadata", "evidence": {"outputs": [{"finding": "stride", "view_raises": raises}]}}
    assert rate_severity(report) is (Severity.RAISING_LAYOUT if raises else Severity.LAYOUT)


def test_whether_a_value_requires_gradients_is_told_where_its_memory_is_right():
    x = torch.ones(2)
    marked, bare = output(x, requires_grad=True), output(x)
    told = compare(marked, bare, None, ())
    assert (told.finding, told.detail) == ("requires_grad", "eager True, compiled False")
    assert compare(bare, bare, None, ()).finding == "same"
    assert compare(replace(marked, aliases=("input0",)), bare, None, ()).finding == "alias"


def test_gradients_of_two_losses_are_not_compared():
    """The numbers that weigh an output are drawn after those of the outputs before it."""
    gradient = [Value("gradient of input0", torch.full((3,), float(number)), "gradient") for number in (1, 5)]
    out = [Value("out0", torch.ones(2, dtype=dtype), "output") for dtype in (torch.float32, torch.int64)]
    judgement = judged(Observation((out[0], gradient[0])), Observation((out[1], gradient[1])))
    assert judgement.verdict is Verdict.METADATA and judgement.confidence == "low"
    assert "gradient of input0 not compared" in judgement.detail
    alike = judged(Observation((out[0], gradient[0])), Observation((out[0], gradient[1])))
    assert alike.verdict is Verdict.WRONG_GRADIENT
