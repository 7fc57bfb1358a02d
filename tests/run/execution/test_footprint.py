"""The estimate of what judging takes: right to the byte for what it counts, and never above what is really held."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.footprint import Footprint, measure_footprint, refuse_oversized

HEADER = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    x = torch.randn(8, 64)
"""
LAYER = 64 * 64 * 4


def measured(write_case, body: str) -> Footprint:
    found = measure_footprint(load_case(write_case(HEADER + body)))
    assert found is not None
    return found


def test_storages_are_counted_once(write_case):
    tied = "    a, b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)\n    b.weight = a.weight\n"
    found = measured(write_case, tied + "    return nn.Sequential(a, b), (x, x[:4], x.t())\n")
    assert (found.parameters, found.whole.native - found.parameters) == (LAYER, 8 * 64 * 4)
    assert found.whole.doubled == 2 * found.whole.native and found.gradients.native == 0


def test_low_precision_grows_by_more_in_float64(write_case):
    found = measured(write_case, "    return nn.Linear(64, 64, bias=False).bfloat16(), (torch.arange(64),)\n")
    assert found.parameters == LAYER // 2
    assert found.whole.doubled == 2 * LAYER + 64 * 8


def test_gradients_count_only_with_backward(write_case):
    layer = "    return nn.Linear(64, 64, bias=False), (x,)\n"
    assert measured(write_case, layer).gradients.native == 0
    found = measured(write_case, f"{layer}BACKWARD = True\n")
    assert found.gradients[:2] == (LAYER, 2 * LAYER)
    assert found.total > measured(write_case, layer).total


def test_a_case_that_cannot_be_made_is_left_to_its_run(write_case):
    assert measure_footprint(load_case(write_case("def make(): raise KeyError('k')"))) is None
    assert measure_footprint(load_case(write_case("def make(): return 3"))) is None


def test_too_large_a_case_is_refused_with_its_figures(write_case):
    case = load_case(write_case(f"{HEADER}    return nn.Linear(4096, 4096), (x,)\n"))
    with pytest.raises(EnvironmentUnfit) as refused:
        refuse_oversized(case, torch.device("cpu"), 2**28)
    said = str(refused.value)
    assert said.startswith("case needs about ") and "parameters 0.06" in said and "the worker itself" in said
    assert said.endswith("and --max-memory allows 0.2 GiB: raise --max-memory or judge a part with --module.")
    refuse_oversized(case, torch.device("cpu"), 2**40)
