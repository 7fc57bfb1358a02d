"""The branches that torch means compiled programs to take, by their places."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fuzzcompile.model.facts import facts

VALUE, CHECK = "torch/optim/optimizer.py:_get_value", "torch/optim/adadelta.py:_multi_tensor_adadelta"


def test_a_place_of_no_branch_makes_none_of_them_by_design():
    assert not facts().find_designs([VALUE, "torch/nn/functional.py:linear"], of_values=True)


def test_a_check_that_is_left_out_explains_no_difference_of_values():
    assert not facts().find_designs([CHECK], of_values=True)
    (check,) = facts().find_designs([CHECK], of_values=False)
    assert check.checks and "capturable" in check.why
    both = facts().find_designs([VALUE, CHECK], of_values=True)
    assert both == facts().find_designs([VALUE], of_values=True) and not both[0].checks


@pytest.mark.parametrize("branch", facts().by_design, ids=lambda branch: min(branch.places))
def test_the_installed_torch_has_these_places(branch):
    torch = pytest.importorskip("torch")
    root = Path(torch.__file__).parent.parent
    for place in branch.places:
        file, function = place.split(":")
        files = root.glob(file)
        names = {
            node.name
            for path in files
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert any(re.fullmatch(function.replace("*", ".*"), name) for name in names), place
