"""Behind its compiled calls a script is run to its end: what it raises there compiled alone is judged."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.diagnosis.worker.minimization import judge_source
from fuzzcompile.model.contract import WHOLE
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.capture.script_text import tests_results as checks_results

pytestmark = pytest.mark.usefixtures("no_workarounds")

# A backend whose outputs are views, which eager's are not: their values, strides and gradients are right.
VIEWS = """
import torch

def returns_views(graph, inputs):
    return lambda *values: tuple(value.view_as(value) for value in graph(*values))

@torch.compile(backend=returns_views)
def double(x):
    return x * 2

weight = torch.ones(3, requires_grad=True)
with torch.no_grad():
    y = double(torch.ones(3))
"""
REFUSED = VIEWS + "y.mul_(weight)\n"
CAUGHT = VIEWS + "try:\n    y.mul_(weight)\nexcept RuntimeError as error:\n    print(error)\n"


def judge(write_case: Any, source: str) -> dict[str, Any]:
    return judge_file(JudgeTask(path=str(write_case(source, "script.py")))).report


@pytest.mark.parametrize("source", [REFUSED, CAUGHT], ids=["raised", "caught"])
def test_what_a_script_raises_with_a_result_is_the_answer(write_case, source):
    report = judge(write_case, source)
    assert (report["verdict"], report["confidence"]) == ("runtime_error", "high")
    assert report["culprit"]["rewrite"] == "returns_views"
    assert report["evidence"]["call"] == {"number": WHOLE, "dynamic": False}
    line = source.splitlines().index(next(line for line in source.splitlines() if "mul_" in line)) + 1
    assert f"judged: the script to its end, for RuntimeError at line {line}" in report["evidence"]["notes"]


def test_the_answer_on_a_whole_script_can_be_asked_for_again():
    report = judge_source(REFUSED, call={"number": WHOLE, "dynamic": False})
    assert (report["verdict"], report["evidence"]["call"]["number"]) == ("runtime_error", WHOLE)


def test_what_eager_mode_raises_alike_is_none(write_case):
    report = judge(write_case, CAUGHT.replace("y.mul_(weight)", "y.mul_(torch.ones(2))"))
    assert (report["verdict"], report["confidence"]) == ("equal", "high")


@pytest.mark.parametrize(
    "check", ["assert not y._is_view()", "if y._is_view():\n    raise ValueError('a view')", "exit(y._is_view())"]
)
def test_a_check_of_the_scripts_own_that_fails_compiled_alone_is_told_and_no_bug(write_case, check):
    report = judge(write_case, VIEWS + check + "\n")
    assert (report["verdict"], report["confidence"]) == ("equal", "low")
    assert any("the script's own check fails at line" in note for note in report["evidence"]["notes"])


# Copies where eager mode returns views, or has kept for the backward pass what it returns: eager refuses the writes.
COPIES = """
import torch

def returns_copies(graph, inputs):
    return lambda *values: tuple(value.clone() for value in graph(*values))

"""
VIEWED = """
with torch.no_grad():
    y = torch.compile(lambda x: (x * 2).view(3), backend=returns_copies)(torch.ones(3))
y.mul_(torch.ones(3, requires_grad=True))
"""
KEPT = """
x = torch.ones(3, requires_grad=True)
y = torch.compile(lambda x: x.exp(), backend=returns_copies)(x)
y.add_(1)
y.sum().backward()
"""


def test_what_eager_mode_alone_raises_is_found(write_case):
    report = judge(write_case, COPIES + VIEWED)
    assert report["verdict"] == "accepts_invalid"


def test_what_eager_mode_alone_raises_and_the_judge_takes_for_no_bug_is_told(write_case):
    report = judge(write_case, COPIES + KEPT)
    assert (report["verdict"], report["confidence"]) == ("equal", "high")
    assert any("to its end, the script is invalid: eager raises" in note for note in report["evidence"]["notes"])


@pytest.mark.parametrize(
    ("use", "checked"),
    [
        ("y.sum().backward()", False),
        ("print(y)", False),
        ("weight.requires_grad_()\ntorch.nn.init.zeros_(weight)", False),
        ("y.sum().backward()\nz.sum().backward()", True),
        ("for y in (y, y):\n    y.sum().backward()", True),
        ("y.zero_()", True),
        ("import copy\ncopy.deepcopy(y)", True),
        ("assert y.sum() > 0", True),
        ("def unrelated(x):\n    return x.zero_()", False),
        ("def main():\n    compiled(weight).zero_()", True),
    ],
)
def test_what_a_text_shows_of_the_use_of_results(use, checked):
    source = f"import torch\ncompiled = torch.compile(torch.sin)\nweight = torch.ones(2)\ny = compiled(weight)\n{use}\n"
    assert checks_results(source) == checked
