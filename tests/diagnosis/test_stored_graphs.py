"""Cases that are judged with the graphs that another process has stored in torch's caches on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

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


def judge(write_case: Any, settings: str) -> dict[str, Any]:
    return triage(load_case(write_case(PROGRAM.format(settings=settings))), torch.device("cpu")).to_json()


def judge_with_plant(write_case: Any, folder: Path, plant: str) -> dict[str, Any]:
    """The report of a worker, in which a plant runs as in the process that fills the caches."""
    (folder / "plant.py").write_text(plant)
    case = write_case(PROGRAM.format(settings=INFERRING))
    command = [sys.executable, "-m", "fuzzcompile", "triage", str(case), "--plant", str(folder / "plant.py"), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def double_result(made: Any) -> Any:
    return lambda *args, **kwargs: [each * 2 for each in made(*args, **kwargs)]


def test_stored_graphs_of_forward_and_backward_pass_are_right(write_case):
    report = judge(write_case, "BACKWARD = True")
    assert report["verdict"] in ("equal", "rounding")
    assert report["confidence"] == "high"  # low if no graph had come out of the caches


def test_a_program_of_which_nothing_can_be_stored_says_so(write_case):
    report = judge(write_case, 'BACKEND = "aot_eager"')
    assert report["verdict"] in ("equal", "rounding") and report["confidence"] == "low"
    assert any("no graph came out" in note for note in report["evidence"]["notes"])


def test_a_graph_that_is_restored_wrong_is_named_by_its_cache(write_case, monkeypatch):
    from torch._inductor.output_code import CompiledFxGraph

    restore = CompiledFxGraph.after_deserialization

    def restore_wrong(self: Any, constants: Any) -> str:
        path = restore(self, constants)
        self.current_callable = double_result(self.current_callable)
        return path

    monkeypatch.setattr(CompiledFxGraph, "after_deserialization", restore_wrong)
    report = judge(write_case, INFERRING)
    assert (report["verdict"], report["confidence"], report["wrong"]) == ("stale", "high", "compiled")
    assert report["culprit"]["rewrite"] == "FxGraphCache.load_with_key"
    assert report["workaround"]["how"] == "torch._inductor.config.fx_graph_cache = False"


@pytest.mark.slow
def test_what_is_wrong_about_a_restored_trace_alone_is_named(write_case, monkeypatch):
    from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult

    wrap = GenericAOTAutogradResult.wrap_post_compile
    monkeypatch.setattr(
        GenericAOTAutogradResult, "wrap_post_compile", lambda *args, **kwargs: double_result(wrap(*args, **kwargs))
    )
    report = judge(write_case, INFERRING)
    assert report["verdict"] == "stale"
    assert report["culprit"]["rewrite"] == "AOTAutogradCache.try_load"
    assert report["workaround"]["how"] == "torch._functorch.config.enable_autograd_cache = False"


@pytest.mark.slow
def test_a_program_that_is_wrong_without_caches_too_is_not_blamed_on_them(write_case, tmp_path):
    report = judge_with_plant(
        write_case,
        tmp_path,
        "import torch\nfrom torch._inductor import decomposition\n"
        "decomposition.decompositions[torch.ops.aten.relu.default] = lambda x: x.abs()\n",
    )
    assert report["verdict"] == "miscompile"
    assert (report["culprit"]["family"], report["culprit"]["necessary"]) == ("relu", True)


@pytest.mark.slow
def test_what_the_other_process_stores_wrong_is_found(write_case, tmp_path):
    report = judge_with_plant(
        write_case,
        tmp_path,
        "from dataclasses import replace\n"
        "from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult\n"
        "save = GenericAOTAutogradResult.pre_save\n"
        "def spoil(self):\n"
        "    info = self.runtime_metadata.output_info\n"
        "    info[:] = [replace(each, base_idx=each.base_idx and 0) for each in info]\n"
        "    save(self)\n"
        "GenericAOTAutogradResult.pre_save = spoil\n",
    )
    assert report["verdict"] == "stale"
    assert report["culprit"]["rewrite"] == "AOTAutogradCache.try_load"
