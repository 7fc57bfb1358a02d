"""A rewrite that somebody suspects: whether it ran, what it did, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, x):
        q = torch.einsum("bid,bdh->bih", x, self.weight) + 1
        weights = torch.softmax(q @ x.transpose(-2, -1) / 3, -1)
        return weights @ x + torch.zeros(8)


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 5, 8),)
"""
NAMES = ("replace_einsum_to_pointwise", "einsum_to_pointwise_pass", "_sfdp", "constant_fold_uniform_value",
         "no_such_rewrite", "pointless_cumsum_replacement")  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> TriageReport:
    path = tmp_path_factory.mktemp("asked") / "case.py"
    path.write_text(SOURCE)
    return triage(load_case(Path(path)), torch.device("cpu"), JudgeTask(suspects=NAMES))


@pytest.mark.parametrize(
    "name, ran, on, words",
    [
        ("replace_einsum_to_pointwise", False, False, "switched on, it was called once and left the graph as it was"),
        ("einsum_to_pointwise_pass", False, False, "'einsum_to_pointwise_pass' in config.pre_grad_fusion_options"),
        ("constant_fold_uniform_value", True, True, "ran once"),
        ("no_such_rewrite", False, None, "`fuzzcompile coverage --rules`"),
        ("pointless_cumsum_replacement", False, True, "found nothing to match"),
    ],
)
def test_what_became_of_a_suspect(report: TriageReport, name: str, ran: bool, on: bool | None, words: str):
    (asked,) = [asked for asked in report.suspects if asked["name"] == name]
    assert (asked["ran"], asked["on"]) == (ran, on)
    assert words in asked["said"]


def test_answers_come_in_the_order_of_the_questions_and_as_json(report: TriageReport):
    assert [one["name"] for one in report.to_json()["suspects"]] == list(NAMES)


def test_report_lists_the_rewrites_that_ran(report: TriageReport):
    rewrites = report.to_json()["rewrites"]
    (folded,) = [one for one in rewrites if one["rewrite"] == "constant_fold_uniform_value"]
    assert (folded["stage"], folded["fired"]) == ("joint_graph", 1)
    assert not [one for one in rewrites if "einsum" in one["rewrite"]]
    assert {one["stage"] for one in rewrites} <= {"pre_grad", "joint_graph", "partition", "post_grad"}
