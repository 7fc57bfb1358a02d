"""Notebooks as cases: the cells up to the first compiled call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.capture.case_loader import load


def notebook(path: Path, *cells: str) -> Path:
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    path.write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": code}))
    return path


def test_the_first_compiled_call_of_a_notebook_is_the_case(tmp_path: Path):
    cells = (
        "%matplotlib inline\nimport torch",
        "def f(x):\n    return x * 2\n\nfast = torch.compile(f)",
        "%time y = fast(torch.ones(3))",
        "raise RuntimeError('never reached')",
    )
    case = load(notebook(tmp_path / "n.ipynb", *cells), torch.device("cpu"))
    assert case.notes[0] == "judged: call 1 of the notebook, f (cell 2, line 4)"
    assert case.notes[1:3] == ("cell 1: `%matplotlib inline` is dropped",
                               "cell 3: `%time y = fast(torch.ones(3))` is run as Python")  # fmt: skip
    target, arguments = case.make()
    assert target(*arguments.args).tolist() == [2.0, 2.0, 2.0]


def test_an_error_before_the_call_is_placed_by_cell(tmp_path: Path):
    path = notebook(tmp_path / "n.ipynb", "import torch", "x = 1\ny = x / 0\ntorch.compile(torch.sin)(y)")
    with pytest.raises(CaseError, match=r"ZeroDivisionError.* in cell 2, line 2 before any compiled"):
        load(path, torch.device("cpu"))
