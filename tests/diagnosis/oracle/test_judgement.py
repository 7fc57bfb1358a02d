"""The judge's first verdict, from observations made by hand: each trap on its own."""

from __future__ import annotations

import math

import pytest
import torch

from fuzzcompile.diagnosis.oracle.judgement import Observations, judge
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.observation import Failure, Observation, Value
from fuzzcompile.run.tensors import list_significant_strides

GENERATOR = torch.Generator().manual_seed(0)


def seen(*tensors: torch.Tensor, kind: str = "output") -> Observation:
    name = {"output": "out", "mutation": "input", "gradient": "gradient of input"}[kind]
    return Observation(tuple(Value(f"{name}{i}", t, kind, list_significant_strides(t)) for i, t in enumerate(tensors)))


def verdict(eager, compiled, reference=None, noisy=(), again=None) -> Verdict:
    reference = reference or Observation(
        tuple(
            Value(v.name, v.value.double() if v.value.is_floating_point() else v.value, v.kind, v.stride)
            for v in eager.values
        )
    )
    return judge(Observations(eager, again or eager, reference, noisy, compiled)).verdict


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def ulps(tensor: torch.Tensor, count: float) -> torch.Tensor:
    return tensor * (1 + count * torch.finfo(tensor.dtype).eps)


def test_the_same_bits_are_equal():
    x = normal(4, 5)
    assert verdict(seen(x), seen(x.clone())) is Verdict.EQUAL


def test_a_few_ulps_are_rounding():
    x = normal(40, 50)
    assert verdict(seen(x), seen(ulps(x, 2)), noisy=[seen(ulps(x, 1))]) is Verdict.ROUNDING


def test_another_value_is_a_miscompile():
    x = normal(4, 5)
    assert verdict(seen(x), seen(x + 0.1)) is Verdict.MISCOMPILE


def test_one_wrong_element_in_a_million_is_a_miscompile():
    x = normal(1000, 1000)
    y = x.clone()
    y[123, 456] += 0.1
    assert verdict(seen(x), seen(y), noisy=[seen(ulps(x, 1))]) is Verdict.MISCOMPILE


def test_outputs_of_size_1e_5_are_held_to_their_own_size():
    x = normal(30, 30) * 1e-5
    assert verdict(seen(x), seen(-x)) is Verdict.MISCOMPILE


def test_a_small_row_beside_large_ones_is_held_to_its_own_size():
    x = normal(20, 32) * 1e4
    x[7] = normal(32) * 1e-3
    y = x.clone()
    y[7] *= 1.5
    assert verdict(seen(x), seen(y), noisy=[seen(ulps(x, 1))]) is Verdict.MISCOMPILE


def test_a_nan_that_all_runs_share_hides_nothing():
    x = normal(6, 6)
    x[0, 0] = math.nan
    y = x.clone()
    y[3, 3] += 1.0
    assert verdict(seen(x), seen(y)) is Verdict.MISCOMPILE
    assert verdict(seen(x), seen(x.clone())) is Verdict.EQUAL


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_value_of_compiled_alone_is_a_bug(value):
    x = normal(6, 6)
    y = x.clone()
    y[2, 2] = value
    assert verdict(seen(x), seen(y)) is Verdict.NONFINITE


def test_an_overflow_that_compiled_avoids_is_no_bug():
    exact = torch.tensor([1e5, 2.0, 3.0], dtype=torch.float64)
    eager = exact.to(torch.float16)
    assert torch.isinf(eager[0])
    compiled = torch.tensor([65504.0, 2.0, 3.0], dtype=torch.float16)
    found = verdict(seen(eager), seen(compiled), reference=seen(exact))
    assert not found.is_bug


def test_an_integer_that_rounding_cannot_flip_is_a_miscompile():
    x = torch.tensor([1, 2, 3])
    assert verdict(seen(x), seen(torch.tensor([1, 2, 4]))) is Verdict.MISCOMPILE


def test_an_index_that_rounding_flips_is_unstable():
    x, y = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 0])
    assert verdict(seen(x), seen(y), noisy=[seen(y)]) is Verdict.UNSTABLE


def test_eager_without_correct_digits_is_unstable():
    exact = torch.tensor([0.0, 1.0], dtype=torch.float64)
    eager, compiled = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    assert verdict(seen(eager), seen(compiled), reference=seen(exact)) is Verdict.UNSTABLE


def test_eager_that_does_not_repeat_itself_accuses_nobody():
    x, y = normal(4), normal(4)
    assert verdict(seen(x), seen(normal(4)), again=seen(y)) is Verdict.UNSTABLE


def test_dtype_shape_and_stride():
    x = normal(4, 5)
    assert verdict(seen(x), seen(x.double())) is Verdict.METADATA
    assert verdict(seen(x), seen(x.reshape(5, 4))) is Verdict.METADATA
    assert verdict(seen(x), seen(x.t().contiguous().t())) is Verdict.METADATA


def test_the_stride_of_a_dimension_of_one_is_nobodys_business():
    x = normal(4, 1)
    assert verdict(seen(x), seen(x.as_strided((4, 1), (1, 77)))) is Verdict.EQUAL


def test_a_gradient_that_is_zero_by_symmetry_is_rounding_whatever_its_ratio():
    large, zero = normal(8, 8), torch.full((8,), 3e-9)
    eager = Observation(
        (Value("gradient of a", large, "gradient", (8, 1)), Value("gradient of b", zero, "gradient", (1,)))
    )
    compiled = Observation(
        (
            Value("gradient of a", large.clone(), "gradient", (8, 1)),
            Value("gradient of b", zero * -40, "gradient", (1,)),
        )
    )
    exact = Observation(
        (
            Value("gradient of a", large.double(), "gradient", (8, 1)),
            Value("gradient of b", torch.full((8,), 1e-17, dtype=torch.float64), "gradient", (1,)),
        )
    )
    assert verdict(eager, compiled, reference=exact) is Verdict.ROUNDING


def test_a_wrong_gradient_alone_is_called_so():
    x = normal(8)
    assert verdict(seen(x, kind="gradient"), seen(x * 2, kind="gradient")) is Verdict.WRONG_GRADIENT


def test_a_mutation_that_only_eager_makes_is_aliasing():
    x, changed = normal(4), normal(4)
    eager = Observation((*seen(x).values, *seen(changed, kind="mutation").values))
    assert verdict(eager, seen(x)) is Verdict.ALIASING


def test_errors():
    x = seen(normal(4))
    broken = Observation(failure=Failure("RuntimeError", "no"))
    while_compiling = Observation(failure=Failure("IndexError", "no", "compile"))
    assert verdict(broken, broken, reference=x) is Verdict.INVALID
    assert verdict(broken, x, reference=x) is Verdict.ACCEPTS_INVALID
    assert verdict(x, broken) is Verdict.RUNTIME_ERROR
    assert verdict(x, while_compiling) is Verdict.COMPILE_ERROR


def test_empty_and_scalar_outputs_and_plain_objects():
    eager = Observation(
        (
            Value("out0", torch.empty(0, 3), "output"),
            Value("out1", 3, "output"),
            Value("out2", None, "output"),
        )
    )
    assert verdict_of_objects(eager, eager) is Verdict.EQUAL
    other = Observation((*eager.values[:1], Value("out1", 4, "output"), eager.values[2]))
    assert verdict_of_objects(eager, other) is Verdict.MISCOMPILE


def verdict_of_objects(eager, compiled) -> Verdict:
    return judge(Observations(eager, eager, eager, (), compiled)).verdict
