"""What the check of a release counts as working, with answers made up."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "release_check.py"))
BUG = {"verdict": "miscompile", "is_bug": True, "confidence": "high", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("status", "output", "works", "said"),
    [
        (1, json.dumps(BUG), True, "`miscompile`, high, exit 1"),
        (0, json.dumps(BUG), False, "exit 0"),
        (1, json.dumps(BUG | {"torch": "2.15.0"}), False, "exit 1"),
        (3, json.dumps({"verdict": None, "is_bug": False, "error": "it ended"}), False, "it ended"),
        (1, "", False, "exit 1: No module / named x"),
    ],
)
def test_a_triage_works_if_report_status_and_torch_agree(status: int, output: str, works: bool, said: str) -> None:
    ran = TOOL["Ran"](status, output, "Traceback\nNo module | named x\n", 1.0)
    answer = TOOL["read_verdict"](ran, "2.13.0+cpu")
    assert answer[0] is works and said in answer[1]


def test_the_script_is_that_of_the_readme() -> None:
    ast.parse(TOOL["PROJECT"])
    assert "torch.compile(Attention())" in ast.unparse(ast.parse(TOOL["readme_script"]()))
