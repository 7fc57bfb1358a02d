"""A bug in the use of a weight is found and named as well where float64 runs convert weights when they are read."""

from __future__ import annotations

import planting
import pytest
import torch
from pattern_tables import restored
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import case_program, footprint

CPU = torch.device("cpu")
SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))
    return model.eval(), (torch.randn(4, 16),)
"""


def bias_off(match, bias, x, weight):
    match.replace_by_example(lambda b, x, w: torch.ops.aten.addmm(b * (1 + planting.ERROR), x, w), [bias, x, weight])


@pytest.fixture
def reports(write_case, monkeypatch):
    """Judges the case, with every parameter streamed or with none."""

    def judged(*, streams: bool):
        monkeypatch.setattr(case_program, "LEAST_BYTES", 0 if streams else 2**60)
        monkeypatch.setattr(case_program, "KEPT_BYTES", 0)
        monkeypatch.setattr(footprint, "KEPT_BYTES", 0)
        return triage(load_case(write_case(SOURCE)), CPU)

    return judged


@pytest.mark.slow
def test_a_wrong_rewrite_of_a_streamed_weight_is_named(reports):
    table = post_grad.pass_patterns[1]
    pattern = CallFunction(torch.ops.aten.addmm.default, KeywordArg("bias"), KeywordArg("x"), KeywordArg("weight"))
    with restored(table):
        # The rewrite leaves an addmm behind, which it must not match again.
        unchanged = lambda match: match.kwargs["bias"].op == "placeholder"  # noqa: E731
        register_graph_pattern(pattern, extra_check=unchanged, pass_dict=table)(bias_off)
        report = reports(streams=True)
    assert report.verdict.is_bug and report.confidence == "high"
    assert report.attribution.culprit.rewrite == "bias_off" and report.attribution.culprit.necessary


def test_a_clean_case_keeps_its_verdict_to_the_bit(reports):
    streams, converts = reports(streams=True), reports(streams=False)
    assert streams.verdict is converts.verdict and streams.confidence == converts.confidence == "high"
    assert streams.comparisons == converts.comparisons
