"""A workaround is a setting that was run and repairs the divergence, the narrowest that does."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import planting
import pytest
import torch
from planting import PLANTS
from torch._inductor import lowering
from watching import make_compilation

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis import attributor
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Workaround
from fuzzcompile.diagnosis.attribution.steps import measure_steps
from fuzzcompile.diagnosis.attributor import find_workaround
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")


def experiments_of(folder: Path, source: str, **how) -> Experiments:
    path = folder / "case.py"
    path.write_text(textwrap.dedent(source))
    initialise_patterns(CPU)
    return Experiments(load_case(path), CPU, make_compilation(**how))


def attribute(experiments: Experiments) -> Attribution:
    trial = experiments.trial()
    experiments.trial(replace(experiments.how, record=False, timed=True))
    return attributor.attribute(Ablator(experiments, trial, measure_steps(trial.ledger)))


def repairs(experiments: Experiments, workaround: Workaround) -> bool:
    config = {**experiments.how.config, **workaround.config}
    return not experiments.trial(make_compilation(config=config)).judgement.verdict.is_bug


def test_pass_of_a_wrong_pattern_is_switched_off(tmp_path: Path):
    with PLANTS["replacement"].install():
        experiments = experiments_of(tmp_path, "import programs\nmake = programs.exponential\n")
        found = attribute(experiments).workaround
        assert found is not None and found.config == {"disabled_passes": "pass_pattern_0"}
        assert repairs(experiments, found)
    assert found.how == "torch._inductor.config.disabled_passes = 'pass_pattern_0'"
    assert found.error is not None and found.error < 1e-5
    assert found.cost_ratio is not None and found.cost_ratio > 0


def test_pass_of_the_users_own_is_taken_out(tmp_path: Path):
    config = {"post_grad_custom_post_pass": planting.logs_off}
    source = "import planting, programs\nmake = programs.logarithm\nOPTIONS = " + (
        "{'post_grad_custom_post_pass': planting.logs_off}\n"
    )
    experiments = experiments_of(tmp_path, source)
    found = attribute(experiments).workaround
    assert found is not None and found.config == dict.fromkeys(config)
    assert repairs(experiments, found)


def wrong_square_root(x):
    return lowering.mul(original_square_root(x), 1.01)


original_square_root = lowering.lowerings[torch.ops.aten.sqrt.default]


def test_dynamo_is_told_to_leave_a_function_with_a_wrong_lowering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.sqrt.default, wrong_square_root)
    experiments = experiments_of(
        tmp_path,
        """
        import torch

        def model(x):
            y = torch.exp(x)
            return torch.sqrt(y) + 1

        def make():
            return model, (torch.linspace(0, 1, 50),)
        """,
    )
    trial = experiments.trial()
    assert trial.judgement.verdict.is_bug
    culprit = Culprit("lowering", None, "aten.sqrt.default", "aten.sqrt", site="case.py:6 #1")
    found = find_workaround(Ablator(experiments, trial), culprit)
    assert found is not None and found.how == "torch._dynamo.disallow_in_graph(torch.sqrt)"
    assert experiments.trial(Compilation()).judgement.verdict.is_bug, "dynamo is as it was before"


def test_what_nothing_repairs_has_no_workaround(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    experiments = experiments_of(
        tmp_path,
        """
        import torch

        def model(x):
            return x + (1.0 if torch.compiler.is_compiling() else 2.0)

        def make():
            return model, (torch.ones(3),)
        """,
    )
    found = attribute(experiments)
    assert found.culprit is not None and found.culprit.stage == "dynamo"
    assert found.workaround is None


def test_thorough_triage_shows_what_each_backend_does(tmp_path: Path):
    with PLANTS["replacement"].install():
        path = tmp_path / "case.py"
        path.write_text("import programs\nmake = programs.exponential\n")
        report = triage(load_case(path), CPU, JudgeTask(thorough=True))
    table = {ablation.toggle: ablation.repairs for ablation in report.attribution.ablations}
    assert [table[f"backend={name}"] for name in ("eager", "aot_eager", "aot_eager_decomp_partition")] == [True] * 3
    assert report.cost.screens >= 3, "a backend that generates no code is a screen"
