"""Faults of CUDA graphs are named where recording was asked for; on CPU builds a stand-in records."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch._inductor.compile_fx
import torch._inductor.cudagraph_utils

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Divergence
from fuzzcompile.diagnosis.kernels.kernel_proofs import search_behind_graphs
from fuzzcompile.diagnosis.stages.backend_stages import Cudagraphs
from fuzzcompile.diagnosis.stages.stage_table import BACKEND_STAGES
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
ASKED = {"a mode": 'MODE = "reduce-overhead"', "an option": 'OPTIONS = {"triton.cudagraphs": True}'}


def recorded_wrongly(model, *args, **kwargs):
    """Stands in for the recording of a graph: what a replay returns is 1 % off."""

    def replayed(inputs):
        return [out * 1.01 if isinstance(out, torch.Tensor) else out for out in model(inputs)]

    return replayed


@contextlib.contextmanager
def recording():
    """Inductor takes the CPU for a device whose graphs it may record, and records them wrongly."""
    with (
        mock.patch.object(torch._inductor.cudagraph_utils, "check_lowering_disable_cudagraph", lambda devices: None),
        mock.patch.object(torch._inductor.compile_fx, "cudagraphify", recorded_wrongly),
        mock.patch.object(torch._inductor.output_code, "prepare_cudagraph_post_compile", lambda *args: None),
        torch._inductor.config.patch({"graph_partition": False}),
    ):
        yield


def ablator_of(folder: Path, settings: str) -> Ablator:
    path = folder / "case.py"
    path.write_text(
        f"import torch\n{settings}\ndef make():\n    torch.manual_seed(0)\n"
        "    return (lambda x, y: torch.exp(x) * y - torch.sin(x)), (torch.randn(8, 33), torch.randn(8, 33))\n"
    )
    initialise_patterns(CPU)
    experiments = Experiments(load_case(path), CPU, Compilation())
    return Ablator(experiments, experiments.trial())


@pytest.mark.parametrize("settings", ASKED.values(), ids=ASKED)
def test_a_wrong_recording_is_named_and_proved_by_the_setting(tmp_path, settings):
    with recording():
        ablator = ablator_of(tmp_path, settings)
        assert ablator.trial.judgement.verdict.is_bug
        found = search_behind_graphs(BACKEND_STAGES, ablator)
    culprit = found.culprit
    assert (culprit.stage, culprit.family, culprit.necessary) == ("cudagraphs", "cudagraphs", True)
    assert culprit.source == "torch/_inductor/cudagraph_trees.py"
    assert [ablation.toggle for ablation in ablator.ablations if ablation.repairs] == ["triton.cudagraphs=False"]
    assert list(Cudagraphs().workarounds(culprit, {})) == [{"triton.cudagraphs": False}]


def test_nothing_is_suspected_where_nothing_is_recorded(tmp_path):
    ablator = ablator_of(tmp_path, ASKED["a mode"])
    divergence = Divergence(ablator.experiments, ablator.experiments.trial(Compilation(kernels=True)), ())
    assert divergence.trial.ledger.lowered
    assert Cudagraphs().suspects(divergence) == []


def test_nothing_is_suspected_where_recording_was_not_asked_for(tmp_path):
    with recording():
        ablator = ablator_of(tmp_path, "")
        assert not ablator.trial.judgement.verdict.is_bug
        assert Cudagraphs().suspects(Divergence(ablator.experiments, ablator.trial, ())) == []
