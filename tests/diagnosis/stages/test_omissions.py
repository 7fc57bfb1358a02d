"""A pass that leaves undone what the lowering relies on is suspected, though no step shows it."""

from __future__ import annotations

from unittest import mock

import torch
import torch._inductor.fx_passes.post_grad

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Divergence
from fuzzcompile.diagnosis.kernels.kernel_proofs import search_behind_graphs
from fuzzcompile.diagnosis.stages.backend_stages import Lowering
from fuzzcompile.diagnosis.stages.stage_table import BACKEND_STAGES
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
CASE = """
import torch

@torch.library.custom_op("omitted::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)

def make():
    torch.manual_seed(0)

    def program(x):
        y = x.exp()
        double_(y)
        return y + 1

    return program, (torch.randn(8, 33),)
"""


def left_alone(graph):
    """Stands in for the pass, and does nothing."""


def test_an_operator_that_a_pass_left_to_the_lowering(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(CASE)
    initialise_patterns(CPU)
    passes = torch._inductor.fx_passes.post_grad
    with mock.patch.object(passes, "decompose_auto_functionalized", left_alone):
        experiments = Experiments(load_case(path), CPU, Compilation())
        trial = experiments.trial()
        assert trial.judgement.verdict.value == "compile_error"
        found = search_behind_graphs(BACKEND_STAGES, Ablator(experiments, trial))
        watched = experiments.trial(Compilation(kernels=True))
        suspects = Lowering().suspects(Divergence(experiments, watched, ()))
    culprit = found.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("post_grad", "decompose_auto_functionalized", None)
    assert culprit.details["left"].startswith("auto_functionalized")
    first = suspects[0]
    assert (first.stage, first.family, first.certain) == ("post_grad", "decompose_auto_functionalized", True)
