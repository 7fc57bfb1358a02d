"""Compiles of one case share its runs; what depends on how a compile is done is not shared."""

from __future__ import annotations

import pytest
import torch
from watching import make_compilation

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.trials.case_runs import NOISE_RUNS
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs

SOURCE = """
import torch

def program(x):
    return x.sin().exp().sum(-1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 16),)
"""


@pytest.fixture
def experiments(write_case) -> Experiments:
    return Experiments(load_case(write_case(SOURCE)), torch.device("cpu"))


@pytest.fixture
def eager_runs(monkeypatch) -> list[int | None]:
    """The noise seed of every eager run that is made from now on."""
    made: list[int | None] = []
    run_eager = runs.run_eager

    def counted(*args, noise_seed=None, **kwargs):
        made.append(noise_seed)
        return run_eager(*args, noise_seed=noise_seed, **kwargs)

    monkeypatch.setattr(runs, "run_eager", counted)
    return made


def test_every_run_is_made_once_for_all_compiles(experiments, eager_runs):
    experiments.run_eager()
    experiments.under(Compilation(record=False)).run_eager()
    assert eager_runs == [None, None, *range(1, NOISE_RUNS + 1)]


def test_a_quick_look_makes_fewer_runs_and_spares_the_full_one_none(experiments, eager_runs):
    quick = experiments.under(Compilation(screen=True), quick=True)
    quick.run_eager()
    assert eager_runs == [None, 1]
    experiments.run_eager()
    assert eager_runs == [None, 1, None, *range(2, NOISE_RUNS + 1)]
    assert quick.runs.eager is experiments.runs.eager
    assert quick.again is quick.runs.eager is not experiments.again


def test_compiles_are_counted_together(experiments):
    experiments.under(Compilation(screen=True), quick=True).trial()
    experiments.trial(make_compilation(backend="aot_eager", record=False))
    experiments.under(Compilation(record=False)).trial()
    assert (experiments.counts.compiles, experiments.counts.screens) == (1, 2)


def test_each_way_to_compile_has_its_own_answer_in_float64(experiments):
    changed = experiments.under(make_compilation(record=False, config={"emulate_precision_casts": True}))
    assert experiments.in_float64 is not None
    assert experiments.knows_float64
    assert not changed.knows_float64


def test_one_baseline_serves_all_compiles(write_case):
    experiments = Experiments(load_case(write_case(SOURCE)), torch.device("cpu"), against="aot_eager")
    baseline = experiments.baseline
    assert experiments.under(Compilation(screen=True), quick=True).baseline is baseline
    assert experiments.counts.compiles == 1
