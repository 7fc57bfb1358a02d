"""What a file of tolerances does to a verdict."""

from __future__ import annotations

import planting
import pytest
import torch
from torch._inductor import config
from torch._inductor.fx_passes import post_grad

from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.tolerances import Tolerances
from fuzzcompile.programs.casefiles.case_module import load_case

MODE = "max-autotune-no-cudagraphs"
SOURCE = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x: torch.cos(x) * 3), (torch.randn(4, 16, 32),)
"""


@pytest.fixture
def table(tmp_path):
    def load(text: str) -> Tolerances:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return Tolerances.load(path)

    return load


def drifting(match, x):
    """A cosine that is off by 1e-4 in every mode but MODE."""
    off = 0.0 if config.max_autotune else 1e-4
    match.replace_by_example(lambda x: torch.cos(x) * (1 + off), [x])


def against_mode(write_case, tolerances):
    case = load_case(write_case(SOURCE))
    with planting.handler(post_grad.pass_patterns[1], planting.aten.cos.default, drifting):
        return Experiments(case, torch.device("cpu"), against=MODE, tolerances=tolerances).trial().judgement.verdict


def test_a_looser_factor_makes_rounding_of_a_bug_of_one_mode(write_case, table):
    others = "[across_backends.float32]\nfactor = 1e5\n[same_backend.bfloat16]\nfactor = 1e5"
    assert against_mode(write_case, table(others)) == "miscompile"
    assert against_mode(write_case, table("[same_backend.float32]\nfactor = 1e5")) == "rounding"


@pytest.mark.parametrize(
    "against, pair",
    [("eager", "same_backend"), (MODE, "same_backend"), ("cpu", "same_backend"), ("aot_eager", "across_backends"),
     ("float64", "across_dtypes")],
)  # fmt: skip
def test_each_baseline_is_judged_by_its_own_pair(write_case, against: str, pair: str):
    experiments = Experiments(load_case(write_case(SOURCE)), torch.device("cpu"), against=against)
    assert experiments.pair == pair
