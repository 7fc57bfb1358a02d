"""Error maps: every element is in a cell, a cell is its worst element, and nothing is smoothed away."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.diagnosis.triage_report import CELLS, make_error_map


def test_small_outputs_keep_one_cell_an_element():
    exact = torch.zeros(2, 3)
    compiled = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, -0.25]])
    drawn = make_error_map(exact, compiled, exact.double())
    assert drawn is not None
    assert drawn["compiled"] == [[0.0, 0.5, 0.0], [0.0, 0.0, 0.25]] and drawn["eager"] == [[0.0] * 3] * 2
    assert (drawn["rows"], drawn["columns"], drawn["row_dims"]) == ([0, 1, 2], [0, 1, 2, 3], 1)


@pytest.mark.parametrize("shape", [(33, 70), (4, 5, 100), (1000,), (3, 1, 64, 1)])
def test_one_wrong_element_shows_in_its_cell_alone(shape):
    exact = torch.zeros(shape)
    compiled = exact.clone()
    compiled.view(-1)[-1] = 2.0
    drawn = make_error_map(exact, compiled, exact)
    assert drawn is not None
    cells = drawn["compiled"]
    assert cells[-1][-1] == 2.0 and sum(error for row in cells for error in row if error) == 2.0
    assert len(cells) == len(drawn["rows"]) - 1 <= CELLS and len(cells[0]) == len(drawn["columns"]) - 1 <= CELLS
    assert drawn["rows"][-1] * drawn["columns"][-1] == exact.numel()


def test_what_is_not_finite_has_no_number_and_hides_nothing_beside_it():
    exact = torch.tensor([1.0, 2.0, 3.0])
    drawn = make_error_map(exact, torch.tensor([float("nan"), 2.5, float("inf")]), exact)
    assert drawn is not None and drawn["compiled"] == [[None, 0.5, None]]


@pytest.mark.parametrize("shape", [(), (1, 1), (0, 4)])
def test_there_is_no_map_of_less_than_two_elements(shape):
    exact = torch.zeros(shape)
    assert make_error_map(exact, exact, exact) is None
    assert make_error_map(torch.zeros(4), torch.zeros(4), exact) is None
