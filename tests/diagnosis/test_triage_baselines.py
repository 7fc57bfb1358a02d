"""What compiled is compared with, and whether a divergence survives float64."""

from __future__ import annotations

import planting
import pytest
import torch
from torch._inductor.fx_passes import post_grad

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
MODE = "max-autotune-no-cudagraphs"
SOURCE = """
import torch

def program(x):
    return x.sin().exp().sum(-1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 16, 32),)
"""
CASTS = SOURCE.replace("x.sin()", "x.bfloat16().sin()")


@pytest.fixture
def judged(write_case):
    return lambda source=SOURCE, **how: triage(load_case(write_case(source)), CPU, JudgeTask(**how))


@pytest.fixture
def wrong_sine():
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, planting.sin_off):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("against", ["eager", "float64", "aot_eager", "cpu"])
def test_every_baseline_shows_the_bug_and_its_culprit(judged, wrong_sine, against: str):
    report = judged(against=against)
    assert report.verdict == "miscompile"
    assert report.against == report.to_json()["evidence"]["against"] == against
    assert (report.attribution.culprit.rewrite, report.attribution.culprit.necessary) == ("sin_off", True)


@pytest.mark.slow
@pytest.mark.parametrize("source", [SOURCE, CASTS], ids=["float32", "casts"])
@pytest.mark.parametrize("against", ["float64", "aot_eager", "cpu", MODE])
def test_a_clean_program_is_clean_against_each(judged, source: str, against: str):
    report = judged(source, against=against)
    assert not report.is_bug
    assert report.confidence == "high"


def test_a_bug_of_both_modes_is_none_between_them(judged, wrong_sine):
    assert judged(against=MODE).verdict == "equal"


@pytest.mark.parametrize("against", ["nonsense", "default"])
def test_what_cannot_be_compared_is_refused_by_name(judged, against: str):
    with pytest.raises(UsageError, match=r"name another|use one of eager, float64, aot_eager, cpu, "):
        judged(against=against)


def test_invalid_programs_stay_invalid(judged):
    wrong = SOURCE.replace("x.sin()", "x.reshape(7)")
    assert judged(wrong, against="float64").verdict == judged(wrong, against="aot_eager").verdict == "invalid"


# -- float64 ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wrong_values_survive_float64(judged, wrong_sine):
    assert judged(thorough=True).survives_float64 is True
    assert judged().survives_float64 is None


def test_rounding_beyond_the_default_tolerance_does_not_survive(judged):
    report = judged(CASTS, thorough=True)
    assert not report.is_bug
    assert report.survives_float64 in (False, None)
    assert (report.survives_float64 is None) == all(c.within_default_tolerance for c in report.comparisons)


def test_equal_values_need_no_float64(judged):
    report = judged(SOURCE.replace("x.sin().exp().sum(-1)", "x + 1"), thorough=True)
    assert report.survives_float64 is None
    assert report.cost.compiles == 1


def test_outputs_that_torchs_own_check_cannot_compare_are_judged(judged):
    program = "    x = (x * 1.1 + 0.3).bfloat16()\n    return (((x * x + x) * x) * 3.3 - x).to(torch.float8_e4m3fn)\n"
    report = judged(SOURCE.replace("    return x.sin().exp().sum(-1)\n", program))
    assert [(output.finding, output.torch_same) for output in report.comparisons] == [("close", None)]
    assert not report.is_bug
