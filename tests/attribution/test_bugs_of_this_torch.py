"""Bugs of torch 2.13 whose rewrites are hard to name: one draws random numbers, one works in two halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzzcompile.case import load_case
from fuzzcompile.triage import triage

# torch's own fusion of dropouts forgets p and training.
SOURCE = """
import torch
import torch.nn.functional as F

OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}, "batch_dropout": {"min_fuse_set_size": 2}}}

class Model(torch.nn.Module):
    def forward(self, x):
        one, other = x.split(4, dim=-1)
        return torch.cat([F.dropout(one, 0.1, self.training), F.dropout(other, 0.1, self.training)], dim=-1)

def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 9, 8),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this fusion does hangs on the torch")
def test_a_fusion_that_drops_in_eval_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(SOURCE)), torch.device("cpu")).to_json()
    assert report["verdict"] == "miscompile"
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("pre_grad", "BatchDropoutPreGradFusion")
    assert culprit["necessary"] is True


# The handler of unbind_cat_to_view, which forgets the order of the parts, calls a pass before it is done.
REORDERED = """
import torch

OPTIONS = {"pre_grad_fusion_options": {"normalization_pass": {}, "unbind_cat_to_view_pass": {}}}

def program(x):
    one, other = torch.unbind(x, dim=-2)
    return torch.cat([other, one])

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3, 2, 4),)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what this pass does hangs on the torch")
def test_a_pattern_whose_handler_calls_a_pass_is_named(write_case: Callable[..., Path]):
    report = triage(load_case(write_case(REORDERED)), torch.device("cpu")).to_json()
    assert report["is_bug"]
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"]) == ("pre_grad", "unbind_cat_to_view")
    assert culprit["necessary"] is True
