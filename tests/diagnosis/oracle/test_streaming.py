"""Measuring piece by piece gives what the formulas give on whole tensors, and takes little memory."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from fuzzcompile.diagnosis.oracle import rounding
from fuzzcompile.model.thresholds import ROUNDING_FACTOR
from fuzzcompile.run import metrics

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
SHAPES = [(), (0,), (7,), (3, 0, 2), (2, 40, 33), (1, 64, 3, 5), (100, 100)]


def whole_distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    one, other = metrics.widen(first), metrics.widen(second)
    apart = (one - other).abs()
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    apart = torch.where(same, torch.zeros_like(apart), apart)
    return torch.where(torch.isnan(apart), torch.full_like(apart, math.inf), apart)


def whole_bound(exact: torch.Tensor, eager: torch.Tensor, noisy: list[torch.Tensor], dtype: torch.dtype):
    errors = [whole_distance(eager, exact), *(whole_distance(other, eager) for other in noisy)]
    worst = torch.stack([torch.where(torch.isfinite(e), e, torch.zeros_like(e)) for e in errors]).amax(0)
    spread = torch.full_like(worst, metrics.largest(worst))
    for dim, size in enumerate(worst.shape):
        if worst.numel() and size >= 2 and worst.numel() // size >= 16:
            others = [d for d in range(worst.dim()) if d != dim]
            spread = torch.minimum(spread, worst.amax(others, keepdim=True).expand_as(worst))
    ulp = torch.finfo(dtype).eps * metrics.widen(exact).abs().nan_to_num(0.0, 0.0, 0.0)
    bound = ROUNDING_FACTOR * spread + 4 * ulp + torch.finfo(dtype).smallest_normal
    return torch.where(torch.stack([torch.isfinite(e) for e in errors]).all(0), bound, math.inf)


def whole_rms(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)].abs()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def whole_sums(exact: torch.Tensor, runs: list[torch.Tensor]) -> list[float]:
    """Figures of ``norms`` for the compiled run (the second): its factor and its RMS, over its bulk."""
    usable = (exact != 0) & torch.stack([torch.isfinite(run) for run in (exact, *runs)]).all(0)
    error, exact = (runs[1] - exact)[usable], exact[usable]
    size = error.abs()
    bulk = size <= size.kthvalue(max(1, int(0.95 * size.numel()))).values
    error, exact = error[bulk], exact[bulk]
    factor = abs(float((error * exact).sum())) / float(exact.square().sum())
    return [factor, whole_rms(error) / whole_rms(exact)]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, odd: bool) -> list[torch.Tensor]:
    """The reference, then runs that round it: some transposed, some (``odd``) with NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.randn(shape, dtype=wide, generator=generator) * 10 ** (seed % 5 - 2)
    runs = [exact]
    for number in range(5):
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        run = (exact * (1 + torch.finfo(dtype).eps * (number + 1) * noise)).to(dtype)
        if odd and run.numel() > 3:
            run.view(-1)[number : number + 3] = torch.tensor([math.nan, math.inf, -math.inf][number % 3])
        runs.append(run.transpose(0, 1).contiguous().transpose(0, 1) if number % 2 and run.dim() > 1 else run)
    return runs


@pytest.mark.parametrize("odd", [False, True], ids=["finite", "odd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pieces_give_what_the_whole_gives(
    shape: tuple[int, ...], dtype: torch.dtype, odd: bool, monkeypatch: pytest.MonkeyPatch
):
    # A power of two: a vectorised square root may differ from a plain one in its last bit, at another place.
    monkeypatch.setattr(metrics, "_PIECE", 2**10)
    for seed in range(5):
        exact, one, other, *noisy = drawn(shape, dtype, seed, odd=odd)
        apart = whole_distance(other, exact)
        torch.testing.assert_close(metrics.distance(other, exact), apart, rtol=1e-15, atol=0.0)
        assert metrics.largest_distance(other, exact) == pytest.approx(metrics.largest(apart), rel=1e-15)
        assert metrics.have_same_values(one, other) == bool((whole_distance(one, other) == 0).all())
        assert metrics.have_same_values(one, one.clone())
        for values in (apart, metrics.widen(one)):
            assert metrics.rms(values) == pytest.approx(whole_rms(values), rel=1e-13)
        bound, _ = metrics.compute_allowance(exact, one, noisy, dtype)
        torch.testing.assert_close(bound, whole_bound(exact, one, noisy, dtype), rtol=1e-14, atol=0.0)
        assert metrics.within_default_tolerance(other, one) == close(other, one)


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    rtol, atol = metrics.DEFAULT_TOLERANCE[expected.dtype]
    bound = atol + rtol * metrics.widen(expected).abs().nan_to_num(0.0, 0.0, 0.0)
    return bool((whole_distance(actual, expected) <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_norms_of_pieces_are_those_of_the_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "_PIECE", 2**8)
    for odd, change in ((False, 1.03), (True, 1.03), (False, 1.2)):
        exact, one, other, *_ = drawn((100, 100), dtype, 3, odd=odd)
        other = other * change
        found = rounding.find_drift(one, other, exact, [])
        assert found is not None
        assert found.compiled == pytest.approx(whole_sums(exact, [one.double(), other.double()])[0], rel=1e-12)


MEASURED = """
import resource, torch
from fuzzcompile.run.observation import Value
from fuzzcompile.diagnosis.oracle.rounding import compare_floats
torch.manual_seed(0)
torch.set_num_threads(1)
n = 2500
exact = torch.randn(n, n, dtype=torch.float64)
run = lambda e: (exact * (1 + e)).float()
one, other, noisy = run(1e-8), run(-1e-7), [run(2e-7), run(-2e-7), run(3e-7)]
small = Value("x", one[:64, :64].clone(), "output", (64, 1))
def compared(k):
    return compare_floats(small, one[:k, :k], other[:k, :k], exact[:k, :k], [s[:k, :k] for s in noisy], 0.0)
compared(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(compared(n).finding, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / (4 * n * n))
"""


@pytest.mark.slow
def test_comparing_takes_at_most_fourteen_times_the_bytes():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    finding, ratio = done.stdout.split()
    assert float(ratio) <= 14, (finding, ratio)
