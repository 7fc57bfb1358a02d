"""What a call leaves behind in closures, globals, classes and containers is compared, by how far the call moves it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.side_effects import SideEffects

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.worker.judge import isolate_process
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.call_state import read_modes

pytestmark = pytest.mark.usefixtures("no_workarounds")

SOURCE = """
import torch

COUNTS = {{"calls": 0}}
SHAPES = []


class Seen:
    mean = 0.0


def make():
    COUNTS.clear()
    COUNTS["calls"] = total = 0

    def program(x):
        nonlocal total
        {effect}
        return x * 2

    return program, (torch.ones(3),)


CALLS = [(torch.ones(3),)]
"""
EFFECTS = {
    "closure": ("total += 1", "total"),
    "dict": ("COUNTS['calls'] += 1", "COUNTS['calls']"),
    "list": ("SHAPES.append(tuple(x.shape))", "len(SHAPES)"),
    "class": ("Seen.mean += 1.5", "Seen.mean"),
    "keys": ("COUNTS['size'] = x.shape[0]", "list(COUNTS)"),
}


KINDS = {"list": "length", "keys": "order or keys"}


def judge(write_case: Any, source: str) -> dict[str, Any]:
    return triage(load_case(write_case(source)), torch.device("cpu")).to_json()


@pytest.mark.parametrize("held", EFFECTS)
def test_an_effect_that_compiled_leaves_out_is_a_bug(write_case, monkeypatch, held):
    """Dynamo's replay of what a program does to Python objects is left out."""
    effect, name = EFFECTS[held]
    source = SOURCE.format(effect=effect)
    assert judge(write_case, source)["verdict"] == "equal"
    monkeypatch.setattr(SideEffects, "codegen_update_mutated", lambda self, *args, **kwargs: None)
    monkeypatch.setattr(SideEffects, "codegen_save_tempvars", lambda self, *args, **kwargs: None, raising=False)
    report = judge(write_case, source)
    assert report["is_bug"]
    wrong = [output["name"] for output in report["evidence"]["outputs"] if output["finding"] != "same"]
    assert any("change of" in each and name in each for each in wrong), wrong
    culprit = report["culprit"]
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("dynamo", "side effects", True)
    assert culprit["details"]["effects"] and culprit["family"] == f"effect on {KINDS.get(held, 'value')}"


def test_a_cache_that_the_first_run_fills_is_no_finding(write_case):
    """No run empties it, so that eager mode itself does not do the same twice."""
    source = (
        "import torch\n\nCACHE = {}\n\ndef positions(n):\n    if n not in CACHE:\n"
        "        CACHE[n] = torch.arange(n).float()\n    return CACHE[n]\n\n"
        "def make():\n    return (lambda x: x * positions(x.shape[0])), (torch.ones(3),)\n"
    )
    assert judge(write_case, source)["verdict"] == "equal"


LEFT = """
import torch

def leaving(graph, inputs):
    def call(*given):
        LEAVE
        return graph(*given)
    return call

def program(x, at):
    return x.index_select(0, at) + 1

def make():
    return program, (torch.ones(3), torch.tensor([AT]))

BACKEND = leaving
"""


# With the second, which is out of bounds, both sides raise: what is left is compared all the same.
@pytest.mark.parametrize("at", [1, 7])
@pytest.mark.parametrize(
    ("leave", "said"),
    [
        ("torch._C._set_grad_enabled(True)", "torch.is_grad_enabled() after the call"),
        ("torch.set_default_dtype(torch.float16)", "torch.get_default_dtype() after the call"),
        ("torch.autocast_increment_nesting()", "the number of autocast regions that are entered after the call"),
    ],
)
def test_a_switch_of_the_process_that_compiled_leaves_otherwise_is_a_bug(write_case, leave, said, at):
    before = read_modes()
    with isolate_process():
        report = judge(write_case, LEFT.replace("LEAVE", leave).replace("AT", str(at)))
    assert (report["verdict"], report["wrong"]) == ("miscompile", "compiled")
    wrong = [row for row in report["evidence"]["outputs"] if row["finding"] != "same"]
    assert [row["name"] for row in wrong] == [said] and ", compiled " in wrong[0]["detail"]
    assert read_modes() == before


def test_what_eager_mode_leaves_too_is_none(write_case):
    report = judge(
        write_case,
        LEFT.replace("LEAVE", "pass").replace("AT", "1").replace("return x", "torch.set_num_threads(3); return x"),
    )
    assert not report["is_bug"]
