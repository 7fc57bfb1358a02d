"""The factor that stands for the judge's own where another way to run has eager's place."""

from __future__ import annotations

import pytest
import torch
from seeing import normal, rounded_runs, seen, wide

from fuzzcompile.diagnosis.oracle.judgement import Observations, judge


@pytest.mark.parametrize("factor, verdict", [(None, "rounding"), (6.0, "rounding"), (0.5, "miscompile")])
def test_a_tighter_factor_makes_a_bug_of_rounding(factor, verdict):
    exact = normal(40, 50)
    eager, noisy = exact.float(), (exact + 2e-4 * normal(40, 50, seed=1)).float()
    compiled = eager.clone()
    compiled[3, 4] += 1e-3  # a single element, within six times what the perturbed run shows around it
    factor_of = None if factor is None else lambda dtype: factor
    runs = Observations(seen(eager), seen(eager), wide(seen(eager)), [seen(noisy)], seen(compiled), factor_of)
    assert judge(runs).verdict == verdict


@pytest.mark.parametrize("factor, verdict", [(None, "miscompile"), (6.0, "miscompile"), (1e6, "rounding")])
def test_a_looser_factor_makes_rounding_of_a_common_factor(factor, verdict):
    exact = normal(40, 50)
    eager, compiled = exact.float(), (exact * 1.0001).float()
    noisy = [seen(run) for run in rounded_runs(exact, torch.float32)]
    factor_of = None if factor is None else lambda dtype: factor
    runs = Observations(seen(eager), seen(eager), wide(seen(eager)), noisy, seen(compiled), factor_of)
    judgement = judge(runs)
    assert judgement.verdict == verdict and bool(judgement.suspicious) == (verdict != "rounding")
