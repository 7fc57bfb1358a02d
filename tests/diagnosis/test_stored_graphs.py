"""Cases that are judged with the graphs that another process has stored in torch's caches on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import torch

PATH = "cached"
{settings}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, y):
        return self.layer(x).relu() + x.sum(), y.view(-1)

def make():
    torch.manual_seed(0)
    return Model(), (torch.randn(3, 4), torch.randn(3, 4))
"""
INFERRING = 'GRAD = "no_grad"'


def judge(write_case: Any, settings: str, plant: str = "") -> dict[str, Any]:
    """The report of a worker, in which a plant runs as in the process that fills the caches.

    What other tests have left in this process may be part of the caches' keys.
    """
    case = Path(write_case(PROGRAM.format(settings=settings)))
    planted = case.with_name("plant.py")
    planted.write_text(plant)
    command = [sys.executable, "-m", "fuzzcompile", "triage", str(case), "--plant", str(planted), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_stored_graphs_of_forward_and_backward_pass_are_right(write_case):
    report = judge(write_case, "BACKWARD = True")
    assert report["verdict"] in ("equal", "rounding")
    assert report["confidence"] == "high"  # low if no graph had come out of the caches


@pytest.mark.slow
def test_a_program_of_which_nothing_can_be_stored_says_so(write_case):
    report = judge(write_case, 'BACKEND = "aot_eager"')
    assert report["verdict"] in ("equal", "rounding") and report["confidence"] == "low"
    assert any("no graph came out" in note for note in report["evidence"]["notes"])


RESTORED_WRONG = """
from torch._inductor.output_code import CompiledFxGraph

restore = CompiledFxGraph.after_deserialization

def restore_wrong(self, constants):
    path = restore(self, constants)
    call = self.current_callable
    self.current_callable = lambda inputs: [result * 2 for result in call(inputs)]
    return path

CompiledFxGraph.after_deserialization = restore_wrong
"""
TRACE_RESTORED_WRONG = """
from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult

wrap = GenericAOTAutogradResult.wrap_post_compile

def wrap_wrong(*args, **kwargs):
    call = wrap(*args, **kwargs)
    return lambda inputs: [result * 2 for result in call(inputs)]

GenericAOTAutogradResult.wrap_post_compile = wrap_wrong
"""
STORED_WRONG = """
from dataclasses import replace
from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult

save = GenericAOTAutogradResult.pre_save

def spoil(self):
    info = self.runtime_metadata.output_info
    info[:] = [replace(each, base_idx=each.base_idx and 0) for each in info]
    save(self)

GenericAOTAutogradResult.pre_save = spoil
"""
INDUCTOR = ("FxGraphCache.load_with_key", "torch._inductor.config.fx_graph_cache = False")
AOT_AUTOGRAD = ("AOTAutogradCache.try_load", "torch._functorch.config.enable_autograd_cache = False")


@pytest.mark.parametrize(
    ("plant", "cache"),
    [
        pytest.param(RESTORED_WRONG, INDUCTOR, id="restored wrong"),
        pytest.param(TRACE_RESTORED_WRONG, AOT_AUTOGRAD, marks=pytest.mark.slow, id="trace restored wrong"),
        pytest.param(STORED_WRONG, AOT_AUTOGRAD, marks=pytest.mark.slow, id="stored wrong by the other process"),
    ],
)
def test_a_graph_that_is_wrong_out_of_a_cache_alone_is_named_by_it(write_case, plant: str, cache: tuple[str, str]):
    report = judge(write_case, INFERRING, plant)
    assert (report["verdict"], report["confidence"], report["wrong"]) == ("stale", "high", "compiled")
    assert (report["culprit"]["rewrite"], report["workaround"]["how"]) == cache


WRONG_ANYWAY = """
import torch
from torch._inductor import decomposition

decomposition.decompositions[torch.ops.aten.relu.default] = lambda x: x.abs()
"""


@pytest.mark.slow
def test_a_program_that_is_wrong_without_caches_too_is_not_blamed_on_them(write_case):
    report = judge(write_case, INFERRING, WRONG_ANYWAY)
    assert report["verdict"] == "miscompile"
    assert (report["culprit"]["family"], report["culprit"]["necessary"]) == ("relu", True)
