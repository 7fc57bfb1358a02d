"""Errors that are small everywhere: a factor of 2e-2 in bfloat16, of 1e-5 in float32, and what is only rounding."""

from __future__ import annotations

import pytest
import torch
from seeing import judged, normal, rounded_runs, seen, wide

from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run import metrics

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def off_by(change, dtype: torch.dtype, *shape: int) -> Judgement:
    """A compiled run whose exact result is ``change`` of the right one, rounded as the others are."""
    exact = normal(*shape)
    eager, *noisy = rounded_runs(exact, dtype)
    compiled = rounded_runs(change(exact), dtype, 5)[-1]
    return judged(seen(eager), seen(compiled), seen(exact), [seen(run) for run in noisy])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64,), (8, 16, 32), (1000, 300)], ids=str)
def test_rounding_is_not_suspicious(dtype: torch.dtype, shape: tuple[int, ...]):
    judgement = off_by(lambda x: x, dtype, *shape)
    assert judgement.verdict is Verdict.ROUNDING
    assert not judgement.suspicious


@pytest.mark.parametrize("error", [2e-2, -2e-2, 0.1])
def test_a_factor_in_bfloat16_is_found(error: float):
    judgement = off_by(lambda x: x * (1 + error), torch.bfloat16, 8, 16, 32)
    assert judgement.verdict is Verdict.MISCOMPILE


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float16, 9e-4), (torch.bfloat16, 1e-2)])
def test_a_smaller_factor_is_suspicious(dtype: torch.dtype, error: float):
    judgement = off_by(lambda x: x * (1 - error), dtype, 8, 16, 32)
    (found,) = judgement.suspicious
    assert found.by_norm
    assert "common factor" in found.detail
    assert judgement.verdict is Verdict.ROUNDING


def test_an_error_that_is_no_factor_is_suspicious():
    judgement = off_by(lambda x: x + 1e-5 * normal(64, 64, seed=9), torch.float32, 64, 64)
    assert judgement.suspicious
    judgement = off_by(lambda x: x + 1.2e-2 * normal(64, 64, seed=9), torch.bfloat16, 64, 64)
    (found,) = judgement.suspicious
    assert found.by_norm
    assert "RMS" in found.detail


def test_outliers_are_left_to_the_test_by_elements():
    exact = normal(64, 64)
    eager, *noisy = rounded_runs(exact, torch.bfloat16)
    compiled = rounded_runs(exact, torch.bfloat16, 5)[-1]
    compiled[3, :50] *= 1.05
    assert rounding.find_drift(eager, compiled, exact, noisy) is None


def test_a_common_factor_that_perturbed_runs_have_too_is_rounding():
    exact = normal(64, 64)
    runs = [(exact * (1 + factor * 2e-3)).to(torch.float32) for factor in (0.1, 1, -1, 0.5, 0.37)]
    eager, *noisy, compiled = runs
    assert rounding.find_drift(eager, compiled, exact, noisy) is None


def test_zeros_do_not_hide_the_rest():
    exact = normal(64, 64)
    exact[:, 2:] = 0
    eager, *noisy = rounded_runs(exact, torch.bfloat16)
    assert rounding.find_drift(eager, (exact * 1.02).to(torch.bfloat16), exact, noisy) is not None


def test_few_elements_and_odd_ones_say_nothing():
    exact = normal(63)
    assert rounding.find_drift(exact.float(), exact.float() * 1.01, exact, []) is None
    exact = normal(100)
    exact[10:] = float("nan")
    assert rounding.find_drift(exact.float(), exact.float() * 1.01, exact, []) is None
    zero = torch.zeros(100, dtype=torch.float64)
    assert rounding.find_drift(zero.float(), zero.float() + 1, zero, []) is None


@pytest.mark.parametrize(
    ("dtype", "size", "told"), [("float32", 1e-40, False), ("float32", 1e-36, True), ("float16", 1e-5, True)]
)
def test_subnormal_results_say_nothing(dtype: str, size: float, told: bool):
    exact = (normal(40, 40) * size).to(getattr(torch, dtype)).double()
    eager = exact.to(getattr(torch, dtype))
    assert (rounding.find_drift(eager, eager * 1.25, exact, []) is not None) is told


def test_complex_values_have_norms():
    exact = torch.complex(normal(40, 40), normal(40, 40, seed=1))
    eager = exact.to(torch.complex64)
    assert rounding.find_drift(eager, eager * (1 + 1e-5j), exact, []) is not None
    assert rounding.find_drift(eager, eager.clone(), exact, []) is None


def test_a_suspicion_hides_no_metadata():
    exact = normal(8, 16, 32)
    eager, *noisy = rounded_runs(exact, torch.float32)
    compiled = (exact * (1 + 1e-6)).float()
    assert judged(seen(eager), seen(compiled), seen(exact), [seen(r) for r in noisy]).suspicious
    turned = compiled.transpose(0, 1).contiguous().transpose(0, 1)
    judgement = judged(seen(eager), seen(turned), seen(exact), [seen(r) for r in noisy])
    assert judgement.verdict is Verdict.METADATA
    shared = seen(compiled, aliases=[("input0",)])
    assert judged(seen(eager), shared, seen(exact), [seen(r) for r in noisy]).verdict is Verdict.ALIASING


def test_a_gradient_that_is_zero_by_symmetry_has_no_norm():
    large, zero = normal(16, 16), normal(256) * 1e-9
    exact = seen(large, zero * 1e-9, kind="gradient")
    eager = seen(large.float(), zero.float(), kind="gradient")
    compiled = seen(large.float(), normal(256, seed=3).float() * 3e-9, kind="gradient")
    judgement = judged(eager, compiled, exact)
    assert judgement.verdict is Verdict.ROUNDING
    assert not judgement.suspicious


# -- units in the last place ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("value", [1.0, 1.5, 1.999, 4.0, 0.25, 6e-5])
def test_neighbours_are_one_ulp_apart(dtype: torch.dtype, value: float):
    x = torch.tensor([value], dtype=dtype)
    above = torch.nextafter(x, torch.tensor([torch.inf], dtype=dtype))
    assert metrics.ulps(metrics.distance(above, x), x, dtype) == 1.0


def test_ulps_at_zero_and_below_the_normal_numbers():
    info = torch.finfo(torch.float32)
    for value in (0.0, info.smallest_normal / 8, info.smallest_normal):
        reference = torch.tensor([value], dtype=torch.float64)
        error = torch.tensor([3 * info.smallest_normal * info.eps], dtype=torch.float64)
        assert metrics.ulps(error, reference, torch.float32) == 3.0


def test_ulps_where_there_are_none():
    x = torch.tensor([1.0, torch.inf, torch.nan])
    error = torch.tensor([0.0, 0.0, torch.inf], dtype=torch.float64)
    assert metrics.ulps(error, x, torch.float32) == 0.0
    assert metrics.ulps(torch.empty(0, dtype=torch.float64), torch.empty(0), torch.float32) == 0.0
    huge = torch.tensor([1e300], dtype=torch.float64)
    assert metrics.ulps(huge, huge, torch.float16) > 1e290
    assert metrics.ulps(error[:1] + 1e-6, torch.ones(1, dtype=torch.complex64), torch.complex64) > 8


def test_comparisons_tell_ulps():
    x = torch.ones(8)
    eps = torch.finfo(torch.float32).eps
    (comparison,) = judged(seen(x + eps), seen(x + 3 * eps), wide(seen(x))).comparisons
    assert (comparison.max_ulps_eager, comparison.max_ulps_compiled) == (1.0, 3.0)


def test_numbers_whose_squares_overflow_drift_nowhere():
    exact = torch.full((64,), 1e200, dtype=torch.float64)
    assert rounding.find_drift(exact, exact * (1 + 1e-3), exact, [exact]) is None
