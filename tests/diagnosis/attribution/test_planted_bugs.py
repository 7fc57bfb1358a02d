"""The attribution names each planted bug, and proves it by vetoes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import planting
import pytest
import torch
from planting import PLANTS, Plant
from torch._inductor.fx_passes import joint_graph, post_grad
from watching import make_compilation

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis import attributor
from fuzzcompile.diagnosis.attribution.culprit import REPLAY, VALUES, Ablator, Attribution, OutOfTime
from fuzzcompile.diagnosis.attribution.steps import measure_steps
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
REPLAYABLE = [plant for plant in PLANTS.values() if plant.replayable]


def experiments_of(folder: Path, program: Callable, *, backward: bool = False, **how) -> Experiments:
    path = folder / "case.py"
    path.write_text(f"import programs\nmake = programs.{program.__name__}\nBACKWARD = {backward}\n")
    initialise_patterns(CPU)
    return Experiments(load_case(path), CPU, make_compilation(**how))


def attribute(experiments: Experiments, *, hidden: bool = False) -> tuple[Trial, Attribution]:
    trial = experiments.trial()
    steps = measure_steps(trial.ledger)
    ablator = Ablator(experiments, trial, steps, evidence=REPLAY if hidden else VALUES)
    return trial, attributor.attribute(ablator)


@pytest.fixture(scope="module", params=REPLAYABLE, ids=str)
def plant(request: pytest.FixtureRequest) -> Plant:
    return request.param


@pytest.fixture(scope="module")
def attributed(plant: Plant, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Attribution]:
    folder = tmp_path_factory.mktemp("case")
    with plant.install():
        return attribute(experiments_of(folder, plant.program, backward=plant.backward, config=plant.config))


def test_planted_bug_is_a_bug(plant: Plant, attributed: tuple[Trial, Attribution]):
    backward_only = plant.rewrite == "cos_off"
    wanted = Verdict.WRONG_GRADIENT if backward_only else Verdict.MISCOMPILE
    assert attributed[0].judgement.verdict is wanted


def test_culprit_is_the_plant(plant: Plant, attributed: tuple[Trial, Attribution]):
    culprit = attributed[1].culprit
    assert culprit is not None
    assert (culprit.stage, culprit.pass_name, culprit.rewrite) == (plant.stage, plant.pass_name, plant.rewrite)
    assert (culprit.source, culprit.line) == (plant.source, plant.line)
    assert culprit.site == (f"{plant.location} #1" if plant.location else None)
    assert culprit.step is not None
    assert culprit.step > planting.ERROR / 2


def test_culprit_is_proved_necessary(attributed: tuple[Trial, Attribution]):
    found = attributed[1]
    assert found.culprit is not None
    assert found.culprit.necessary is True
    assert found.culprit.confidence == "high"
    assert any(ablation.repairs for ablation in found.ablations if ablation.toggle.startswith("veto"))


def test_culprit_is_sufficient_or_its_helper_is_named(attributed: tuple[Trial, Attribution]):
    found = attributed[1]
    assert found.culprit is not None
    if found.culprit.sufficient:
        assert found.contributors == []
    else:
        assert found.contributors
        assert all(other.necessary for other in found.contributors)


@pytest.mark.parametrize(("compiles", "sufficient", "helpers"), [(1, None, []), (5, False, ["remove_noop_ops"])])
def test_what_is_proved_stays_so_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: int, sufficient: bool | None, helpers: list[str]
):
    run, left = Ablator.run_trial, iter(range(compiles))

    def run_in_time(ablator: Ablator, how: Compilation) -> Trial:
        if next(left, None) is None:
            raise OutOfTime
        return run(ablator, how)

    monkeypatch.setattr(Ablator, "run_trial", run_in_time)
    plant = PLANTS["replacement in a joint graph with gradients"]
    with plant.install():
        _, found = attribute(experiments_of(tmp_path, plant.program, backward=plant.backward, config=plant.config))
    assert found.culprit is not None and found.cut_off
    assert (found.culprit.rewrite, found.culprit.necessary) == (plant.rewrite, True)
    assert found.culprit.sufficient is sufficient
    assert [helper.rewrite for helper in found.contributors] == helpers


def test_siblings_that_take_its_place_are_vetoed_together(tmp_path: Path):
    plant = PLANTS["SDPA replacement"]
    with plant.install():
        _, found = attribute(experiments_of(tmp_path, plant.program))
    assert found.culprit is not None
    assert found.culprit.family == "sfdp"
    toggles = [ablation.toggle for ablation in found.ablations if ablation.repairs]
    assert any("_sfdp_pattern_1, _sfdp_pattern_3" in toggle for toggle in toggles)


def test_bug_that_only_float64_shows_is_named(tmp_path: Path):
    plant = PLANTS["SDPA replacement"]
    with planting.attention_scale(planting.SMALL_ERROR):
        trial, found = attribute(experiments_of(tmp_path, plant.program), hidden=True)
    assert not trial.judgement.verdict.is_bug
    assert found.culprit is not None
    assert found.culprit.rewrite == "_sfdp_pattern_1_inference"
    assert found.culprit.necessary is True


def test_wrong_lowering_of_a_pattern_is_found_by_its_veto(tmp_path: Path):
    plant = PLANTS["lowering"]
    with plant.install():
        trial, found = attribute(experiments_of(tmp_path, plant.program))
        repaired = experiments_of(tmp_path, plant.program, vetoes=("erf_off",)).trial()
    assert trial.judgement.verdict is Verdict.MISCOMPILE
    assert not repaired.judgement.verdict.is_bug
    assert found.culprit is not None
    assert (found.culprit.rewrite, found.culprit.necessary, found.culprit.confidence) == ("erf_off", True, "low")


@pytest.mark.parametrize(
    "table, function, check, rewrite, stage, program, backward",
    [
        (joint_graph.patterns, planting.raise_in_handler, None, "raise_in_handler", "joint_graph", "sine", False),
        (post_grad.pass_patterns[2], planting.sin_off, planting.raise_in_check, "sin_off", "post_grad", "sine", False),
        (
            post_grad.pass_patterns[1],
            planting.raise_in_handler,
            None,
            "raise_in_handler",
            "post_grad",
            "sine_trained",
            True,
        ),
    ],
    ids=["handler", "check", "handler in the backward graph"],
)
def test_rewrite_that_raises_is_the_culprit(
    tmp_path: Path, table, function, check, rewrite: str, stage: str, program: str, backward: bool
):
    operator = planting.aten.cos.default if backward else planting.aten.sin.default
    checks = {} if check is None else {"extra_check": check}
    with planting.handler(table, operator, function, **checks):
        experiments = experiments_of(tmp_path, getattr(planting.programs, program), backward=backward)
        trial, found = attribute(experiments)
    assert trial.judgement.verdict is Verdict.COMPILE_ERROR
    assert found.culprit is not None
    assert (found.culprit.stage, found.culprit.rewrite) == (stage, rewrite)
    assert found.culprit.necessary is True


@pytest.mark.slow
def test_two_independent_bugs_are_both_named(tmp_path: Path):
    first, second, _ = post_grad.pass_patterns
    sin = planting.handler(first, planting.aten.sin.default, planting.sin_off)
    exp = planting.replacement(second)
    with sin, exp:
        trial, found = attribute(experiments_of(tmp_path, planting.programs.sine_and_exponential))
    assert trial.judgement.verdict is Verdict.MISCOMPILE
    assert found.culprit is not None
    named = {found.culprit.rewrite, *(other.rewrite for other in found.contributors)}
    assert named == {"sin_off", "exp_times"}


def test_clean_program_has_no_bug(tmp_path: Path):
    experiments = experiments_of(tmp_path, planting.programs.attention)
    assert not experiments.trial().judgement.verdict.is_bug
