"""Variations of a user's case: what can be varied, files that run alone, and near misses of the program."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from fuzzcompile.fuzz.case_survey import Survey, survey_case
from fuzzcompile.fuzz.variation import draw_variation, list_edits
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.runs import run_eager

CASE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(12, 12)

    def forward(self, x, y):
        q = self.project(x).view(*x.shape[:2], 3, 4).permute(0, 2, 1, 3)
        scores = q @ q.transpose(-1, -2) / 2.0
        z = scores.softmax(dim=-1) @ q
        return z.sum(dim=1).contiguous() + y


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 5, 12), torch.randn(2, 5, 4))
"""


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory) -> Survey:
    path = tmp_path_factory.mktemp("variations") / "mine.py"
    path.write_text(CASE)
    return survey_case(str(path))


def test_the_survey_tells_what_can_be_varied(surveyed):
    assert [leaf.shape for leaf in surveyed.inputs] == [(2, 5, 12), (2, 5, 4)]
    assert {(group.size, group.places) for group in surveyed.resizable} == {
        (2, ((0, 0), (1, 0))),
        (5, ((0, 1), (1, 1))),
    }  # the width is that of the weights
    assert {"float32", "bfloat16", "float64"} <= set(surveyed.dtypes)
    assert surveyed.is_module and surveyed.has_gradients and "freezing" in surveyed.toggles


@pytest.fixture(scope="module")
def drawn(surveyed) -> list:
    return [draw_variation(surveyed, random.Random(number)) for number in range(150)]


def test_nearly_all_variations_run_in_eager_mode(drawn, tmp_path):
    failed = Counter()
    for number, variation in enumerate(drawn[:60]):
        path = tmp_path / f"varied_{number}.py"
        path.write_text(variation.source)
        seen = run_eager(load_case(path), torch.device("cpu"))
        if seen.failure is not None:
            failed.update(variation.operators)
    assert sum(failed.values()) <= 15, failed


def test_every_operator_is_drawn_and_changes_the_program(drawn, surveyed):
    operators = Counter(name for variation in drawn for name in variation.operators)
    assert {"size", "second_call", "bfloat16", "autocast", "backward", "train", "aliased_inputs"} - set(operators) == {
        "aliased_inputs"  # the inputs have different shapes
    }
    assert {"axis", "swapped", "contiguous", "permuted", "also_returned"} <= set(operators)
    assert len({variation.source for variation in drawn}) > 115
    assert all(variation.operators and variation.source != surveyed.source for variation in drawn)


def test_the_same_choices_give_the_same_variation(surveyed, drawn):
    assert [draw_variation(surveyed, random.Random(number)) for number in range(5)] == drawn[:5]


def test_a_size_reaches_the_inputs_and_a_second_call_has_its_own(drawn, tmp_path):
    sized = next(v for v in drawn if v.operators == ("size",))
    path = tmp_path / "sized.py"
    path.write_text(sized.source)
    shapes = [tuple(value.shape) for value in load_case(path).make()[1]]
    assert shapes[0][:2] == shapes[1][:2] != (2, 5)
    twice = next(v for v in drawn if v.operators == ("second_call",))
    path = tmp_path / "twice.py"
    path.write_text(twice.source)
    first, second = load_case(path).calls or ()
    assert first[0].shape == (2, 5, 12) and second[0].shape != first[0].shape


def test_a_variation_needs_torch_alone(drawn, tmp_path):
    path = tmp_path / "alone.py"
    path.write_text(drawn[0].source + "\nprint(type(make()[0]).__name__)\n")
    done = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)
    assert done.stdout == "Model\n", done.stderr


def test_edits_of_a_program():
    edits = list_edits(CASE)
    for _, edited in edits:
        ast.parse(edited)
    texts = dict(edits)
    assert "softmax(dim=" in texts["axis"] and texts["axis"] != CASE
    assert "permute(0, 2, 3, 1)" in texts["permuted"]
    assert "sum(dim=1) + y" in texts["not_contiguous"]
    assert any("/ torch.tensor(2.0)" in edited for _, edited in edits)
    assert "+ y, z" in texts["also_returned"]
    assert all("Linear(12" in edited for _, edited in edits)  # constructors and make() stay


def test_text_that_is_no_python_has_no_edits():
    assert list_edits("def (") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\ntorch.compile(torch.sin)(torch.ones(2))\n", "defines no make"),
        ("def make():\n    raise ValueError('no')\n", "make"),
        ("def make():\n    return (lambda x: x.nothing), (1,)\n", "fails in eager mode"),
    ],
)
def test_what_cannot_be_varied_is_said_in_one_sentence(tmp_path, text, said):
    path = Path(tmp_path, "other.py")
    path.write_text(text)
    with pytest.raises(CaseError, match=said) as raised:
        survey_case(str(path))
    assert "\n" not in str(raised.value)
