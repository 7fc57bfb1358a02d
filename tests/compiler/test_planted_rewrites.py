"""One planted rewrite of each kind: it is recorded, measured by replay, and can be vetoed."""

from __future__ import annotations

import planting
import pytest
import torch
from planting import PLANTS, Plant
from watching import Watched, apart, eager, watch, watch_plant

from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.rule_labels import is_vetoed

ROUNDING = 1e-5


def reference(plant: Plant) -> list:
    target, inputs = plant.program()
    return eager(target, inputs, backward=plant.backward)


def the_step(plant: Plant, watched: Watched):
    return next(step for step in watched.steps if step.label.rewrite == plant.rewrite)


def test_plant_makes_the_compiled_result_wrong(plant: Plant, planted: Watched):
    assert apart(planted.values, reference(plant)) > planting.ERROR / 2


def test_recording_meets_no_trouble(planted: Watched):
    assert planted.ledger.unseen == []
    assert planted.ledger.failed_in is None


def test_rewrite_is_recorded_with_its_rule_and_place_in_torch(plant: Plant, planted: Watched):
    found = [
        (record.stage, record.direction, rewrite.label)
        for _, record, rewrite in planted.ledger.list_rewrites()
        if rewrite.label.rewrite == plant.rewrite
    ]
    stage, direction, label = found[0]
    assert (stage, direction) == (plant.stage, plant.direction)
    assert (label.stage, label.pass_name) == (plant.stage, plant.pass_name)
    assert (label.source, label.line) == (plant.source, plant.line)


def test_rewrite_of_a_pattern_names_the_users_line_and_the_nodes(plant: Plant, planted: Watched):
    rewrite = the_step(plant, planted).rewrite
    if plant.location is None:
        assert rewrite.site is None
        assert rewrite.nodes == ()
    else:
        assert str(rewrite.site) == f"{plant.location} #1"
        assert set(plant.nodes) <= set(rewrite.nodes)
        assert rewrite.nodes


def test_replay_measures_the_error_natively_and_in_float64(plant: Plant, planted: Watched):
    step = the_step(plant, planted)
    assert step.raised is None
    assert step.metadata is None
    if plant.replayable:
        assert step.is_semantic
        assert step.moves_natively
        assert step.float64 == pytest.approx(step.native, rel=1e-3)
        assert step.float64 > planting.ERROR / 2
    else:
        # Replay runs the operators that a lowering replaced, because it has nothing else to run.
        assert step.is_opaque
        assert (step.float64, step.native) == (0.0, 0.0)


def test_replay_blames_nothing_but_the_plant(plant: Plant, planted: Watched):
    suspicious = {s.label.rewrite for s in planted.steps if s.is_semantic or s.moves_natively}
    assert suspicious <= {plant.rewrite}


def test_veto_by_name_makes_the_result_right(plant: Plant, vetoed: Watched):
    assert plant.rewrite not in vetoed.fired
    assert set(vetoed.outcomes(plant.rewrite)) == {"vetoed"}
    assert apart(vetoed.values, reference(plant)) < ROUNDING
    assert vetoed.ledger.unseen == []


def test_torch_is_as_before_once_the_plant_is_gone(plant: Plant, planted: Watched):
    target, inputs = plant.program()
    again = watch(target, inputs, backward=plant.backward, screen=True)
    assert apart(again.values, reference(plant)) < ROUNDING


# -- names --------------------------------------------------------------------------------------------

POST_GRAD = PLANTS["graph handler, post-grad stage"]
NAMED = PLANTS["named replacement"]
SHARED = PLANTS["function of a pass of torch"]


@pytest.mark.parametrize("name", ["sin_off", "post_grad:sin_off", "sin_", "sin", "*_off", "post_grad:s?n_off"])
def test_pattern_can_be_vetoed_by_stage_prefix_and_glob(name: str):
    watched = watch_plant(POST_GRAD, vetoes=[name], screen=True)
    assert watched.fired == []
    assert watched.outcomes("sin_off") == {"vetoed": 1}


@pytest.mark.parametrize("name", ["joint_graph:sin_off", "si", "sin_of", "cos_off", "SIN_OFF", "", "off"])
def test_other_names_leave_the_pattern_alone(name: str):
    watched = watch_plant(POST_GRAD, vetoes=[name], screen=True)
    assert watched.fired == ["sin_off"]


@pytest.mark.parametrize("name", ["_planted_pattern_3", "_planted", "_planted_pattern_3_inference"])
def test_variants_of_a_named_pattern_are_vetoed_by_its_base_name(name: str):
    assert watch_plant(NAMED, vetoes=[name], screen=True).fired == []


def test_number_of_a_pattern_is_not_a_prefix_of_a_longer_number():
    with_ten = planting.replacement(planting.post_grad.pass_patterns[2], name="_planted_pattern_10")
    target, inputs = NAMED.program()
    with with_ten:
        assert watch(target, inputs, vetoes=["_planted_pattern_1"], screen=True).fired == ["_planted_pattern_10"]


def test_number_of_a_pass_is_not_a_prefix_of_a_longer_number():
    ten = Label("joint_graph", "pass_pattern_10", "pass_pattern_10")
    assert not is_vetoed(ten, ["pass_pattern_1"])
    assert is_vetoed(ten, ["pass_pattern_10"])
    assert is_vetoed(ten, ["pass_pattern"])


def test_veto_of_a_pass_takes_out_the_patterns_in_it():
    watched = watch_plant(POST_GRAD, vetoes=["post_grad:pass_pattern_1"], screen=True)
    assert watched.fired == []


def test_veto_of_another_pass_leaves_the_patterns_alone():
    watched = watch_plant(POST_GRAD, vetoes=["post_grad:pass_pattern_0", "joint_graph:pass_pattern_1"], screen=True)
    assert watched.fired == ["sin_off"]


@pytest.mark.parametrize("stage, other", [("joint_graph", "post_grad"), ("post_grad", "joint_graph")])
def test_pass_of_two_stages_can_be_vetoed_in_one(stage: str, other: str):
    watched = watch_plant(SHARED, vetoes=[f"{stage}:remove_noop_ops"], screen=True)
    assert [record.stage for _, record, _ in watched.ledger.list_rewrites()] == [other]


def test_vetoed_sibling_lets_the_next_of_its_family_take_its_place():
    plant = PLANTS["SDPA replacement"]
    one = watch_plant(plant, vetoes=["_sfdp_pattern_1"], screen=True)
    assert one.fired == ["_sfdp_pattern_3_inference"]
    family = watch_plant(plant, vetoes=["_sfdp"], screen=True)
    assert not [name for name in family.fired if name.startswith("_sfdp")]
    assert apart(family.values, reference(plant)) < ROUNDING


def test_only_lets_nothing_else_apply():
    plant = PLANTS["SDPA replacement"]
    alone = watch_plant(plant, only=("_sfdp_pattern_1",), screen=True)
    assert alone.fired == ["_sfdp_pattern_1_inference"]
    none = watch_plant(plant, only=("nothing",), screen=True)
    assert none.fired == []
    assert apart(none.values, reference(plant)) < ROUNDING


# -- small errors -------------------------------------------------------------------------------------


def test_small_error_in_the_attention_scale_shows_in_float64_alone():
    target, inputs = PLANTS["SDPA replacement"].program()
    with planting.attention_scale(planting.SMALL_ERROR):
        watched = watch(target, inputs)
    (right,) = eager(target, inputs)
    torch.testing.assert_close(watched.values[0], right)
    step = watched.step("_sfdp_pattern_1_inference")
    assert step.is_semantic
    assert 1e-6 < step.float64 < 1e-4


# -- lowerings ----------------------------------------------------------------------------------------


def test_rewrites_after_a_lowering_are_still_measured():
    target, inputs = PLANTS["lowering"].program()
    first, _, third = planting.post_grad.pass_patterns
    off = planting.handler(third, planting.aten.add.Tensor, planting.shift_off)
    with planting.lowering(first), off:
        watched = watch(target, inputs)
    assert watched.fired == ["erf_off", "shift_off"]
    assert not watched.step("erf_off").is_semantic
    assert watched.step("shift_off").is_semantic


def test_lowering_that_cannot_be_replayed_is_not_blamed():
    target, inputs = PLANTS["lowering"].program()
    with planting.unreplayable_lowering(planting.post_grad.pass_patterns[2]):
        watched = watch(target, inputs)
    step = watched.step("add_ignoring")
    assert (step.raised, step.float64, step.native) == (None, None, None)
    assert not step.is_semantic
    assert watched.ledger.unseen == []
