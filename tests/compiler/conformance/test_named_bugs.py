"""Conformance, end to end: a planted bug that lives only where parameters are frozen, or constants folded, is named."""

from __future__ import annotations

import planted
import pytest
import torch

from fuzzcompile.compiler.watch import torch_patch
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

FROZEN = """
import torch
from torch import nn

OPTIONS = {"freezing": True}
CONFIG = {"dynamo": {"prepare_freezing": True}}  # options come too late for dynamo to leave the parameters in its graph


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.rand(5) + 0.5), nn.Linear(5, 7)

    def forward(self, x):
        return self.linear(torch.sin(x) * (self.weight * 2 + 1))


def make():
    torch.manual_seed(0)
    return Frozen().eval(), (torch.randn(3, 5),)
"""
UNIFORM = """
import torch


def program(x):
    return torch.sin(x) * (torch.ones(5) * 2)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 5),)
"""
WRONG = {plant.name: plant for plant in planted.PLANTED}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, source, family",
    [
        ("pattern of freezing", FROZEN, "sine_off"),
        ("constants of freezing", FROZEN, "constant_fold"),
        ("uniform constants", UNIFORM, "constant_fold_uniform_value"),
    ],
)
def test_it_is_named_and_proved(name, source, family, write_case):
    plant = WRONG[name]
    with plant.install():
        report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    culprit = report["culprit"]
    assert report["verdict"] == "miscompile"
    assert (culprit["stage"], culprit["rewrite"], culprit["family"]) == (plant.stage, plant.rewrite, family)
    assert (culprit["necessary"], culprit["sufficient"], report["contributors"]) == (True, True, [])


@pytest.mark.parametrize("source", [pytest.param(FROZEN, marks=pytest.mark.slow), UNIFORM])
def test_without_the_plant_there_is_no_bug(source, write_case):
    report = triage(load_case(write_case(source)), torch.device("cpu")).to_json()
    assert report["verdict"] in ("equal", "rounding")
    assert report["culprit"] is None


def test_report_says_what_was_not_watched(write_case, monkeypatch):
    monkeypatch.setitem(torch_patch.switched_off, "freezing stage", "it takes other arguments")
    case = load_case(write_case(FROZEN.replace("CONFIG = {", 'CONFIG = {"inductor": {"freezing": True}, ')))
    report = triage(case, torch.device("cpu")).to_json()
    text = "not watched: freezing stage (it takes other arguments): rewrites of frozen graphs were not seen"
    assert report["evidence"]["notes"] == [text]
    assert report["confidence"] == "low"


def test_what_has_nothing_to_do_is_not_missed(write_case, monkeypatch):
    monkeypatch.setitem(torch_patch.switched_off, "freezing stage", "it takes other arguments")
    report = triage(load_case(write_case(UNIFORM)), torch.device("cpu")).to_json()
    assert report["evidence"]["notes"] == []
    assert report["confidence"] == "high"
