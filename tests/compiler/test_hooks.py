"""The hooks themselves: found, put in and taken out again, and invisible to what is compiled."""

from __future__ import annotations

import dataclasses

import planting
import programs
import pytest
import torch
from planting import PLANTS
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad
from watching import apart, eager, make_compilation, run, watch, watch_plant

from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch import conformance, patch_table, recorder
from fuzzcompile.compiler.watch import recorder as recorder_module
from fuzzcompile.model.stages import ATEN, CUDAGRAPHS, FUNCTIONALIZATION, STAGES
from fuzzcompile.run.case import CompileSettings

HOOK_NAMES = [patch.name for patch in patch_table.GRAPHS]
ALL_NAMES = [patch.name for patch in patch_table.PATCHES]


def hooked_functions() -> list[object]:
    return [
        getattr(patch.find_owner(), patch.leaf)
        for patch in patch_table.GRAPHS
        if patch.members is None and patch.name != "joint pass"
    ]


def entries() -> list[tuple[object, dict]]:
    """Every entry of the tables that Inductor's stages run, with its attributes."""
    tables = [
        joint_graph.early_patterns,
        *joint_graph.pass_patterns,
        *post_grad.pass_patterns,
        pre_grad.efficient_conv_bn_eval_pass,
    ]
    listed = [entry for table in tables for found in table.patterns.values() for entry in found]
    return [(entry, dict(entry.__dict__)) for entry in listed]


def lose(monkeypatch: pytest.MonkeyPatch, name: str, **changes: str) -> None:
    """Have fuzzcompile look for a function in a place that this torch does not have."""
    for table in ("GRAPHS", "COVERAGE", "KERNELS", "DECOMPOSITIONS", "METADATA", "SPEED", "PATCHES"):
        rows = [
            dataclasses.replace(
                patch, **(changes or {"attribute": f"{patch.attribute}_of_another_torch", "members": None})
            )
            if patch.name == name
            else patch
            for patch in getattr(patch_table, table)
        ]
        monkeypatch.setattr(patch_table, table, tuple(rows))


def test_this_torch_has_a_place_for_every_patch():
    assert conformance.find_missing_patches() == {}


def test_names_of_patches_are_unique():
    assert len(set(ALL_NAMES)) == len(ALL_NAMES)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_missing_function_is_named(monkeypatch: pytest.MonkeyPatch, name: str):
    lose(monkeypatch, name)
    assert list(conformance.find_missing_patches()) == [name]


def test_function_in_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch):
    lose(monkeypatch, "backend entry", module="torch._inductor.of_another_torch")
    assert list(conformance.find_missing_patches()) == ["backend entry"]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in (ATEN, FUNCTIONALIZATION, CUDAGRAPHS)])
def test_every_stage_that_is_watched_knows_its_patches(stage: str):
    assert any(stage in patch.stages for patch in patch_table.PATCHES)


# What is still recorded of three plants (pre-grad pass, joint-graph pattern, post-grad pass) without a hook.
SURVIVES = {
    "plain passes": {"first_logs_off", "sin_off", "last_logs_off"},
    "joint pass": {"first_logs_off", "sin_off", "last_logs_off"},
    "backend entry": set(),
    "pre-grad stage": {"sin_off", "last_logs_off"},
    "joint-graph stage": {"first_logs_off", "last_logs_off"},
    "post-grad stage": {"first_logs_off", "sin_off"},
    "graph pass": {"sin_off"},
    "module pass": {"first_logs_off", "sin_off", "last_logs_off"},
    "pattern pass": {"first_logs_off", "last_logs_off"},
    "fusion passes": {"first_logs_off", "sin_off", "last_logs_off"},
    "partition": {"first_logs_off", "sin_off", "last_logs_off"},
    "freezing stage": {"first_logs_off", "sin_off", "last_logs_off"},
    "frozen parameters": {"first_logs_off", "sin_off", "last_logs_off"},
    "layout of frozen weights": {"first_logs_off", "sin_off", "last_logs_off"},
    "dead code": {"first_logs_off", "sin_off", "last_logs_off"},
    "analysis of inputs and outputs": {"first_logs_off", "sin_off", "last_logs_off"},
    "tangents": {"first_logs_off", "sin_off", "last_logs_off"},
}


def first_logs_off(graph: torch.fx.Graph) -> None:
    planting.logs_off(graph)


def last_logs_off(graph: torch.fx.Graph) -> None:
    planting.logs_off(graph)


def three_plants() -> tuple:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.log(x.abs() + 1))

    passes = {"pre_grad_custom_pass": first_logs_off, "post_grad_custom_post_pass": last_logs_off}
    return program, programs.tensors((3, 5)), passes


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_rest_works_without_a_hook(monkeypatch: pytest.MonkeyPatch, name: str):
    lose(monkeypatch, name)
    program, inputs, passes = three_plants()
    with planting.handler(joint_graph.patterns, planting.aten.sin.default, planting.sin_off):
        watched = watch(program, inputs, config=passes)
    assert apart(watched.values, eager(program, inputs)) > planting.ERROR
    seldom = {"joint pass", "freezing stage", "frozen parameters", "layout of frozen weights", "fusion passes"}
    unseen = [missed.what for missed in watched.ledger.unseen]
    assert unseen == ([name] if name not in seldom or name == "joint pass" else [])
    planted = {"first_logs_off", "sin_off", "last_logs_off"}
    assert set(watched.fired) & planted == SURVIVES[name]


def test_every_hook_has_a_test_of_its_loss():
    assert set(SURVIVES) == set(HOOK_NAMES)


def test_all_three_plants_are_recorded_with_all_hooks():
    program, inputs, passes = three_plants()
    with planting.handler(joint_graph.patterns, planting.aten.sin.default, planting.sin_off):
        watched = watch(program, inputs, config=passes)
    assert watched.fired == ["first_logs_off", "sin_off", "last_logs_off"]


# -- in and out ---------------------------------------------------------------------------------------


def test_functions_of_torch_are_replaced_inside_the_block_only():
    before = hooked_functions()
    with open_session(CompileSettings(), Compilation()):
        inside = hooked_functions()
    assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert hooked_functions() == before


def test_functions_and_settings_of_torch_are_restored_when_the_block_raises():
    before = hooked_functions()
    config = (torch._inductor.config.fallback_random, torch._functorch.config.enable_autograd_cache)
    with pytest.raises(KeyError), open_session(CompileSettings(), make_compilation(config={"max_fusion_size": 3})):
        assert torch._inductor.config.max_fusion_size == 3
        raise KeyError("in the block")
    assert hooked_functions() == before
    assert torch._inductor.config.max_fusion_size != 3
    assert config == (torch._inductor.config.fallback_random, torch._functorch.config.enable_autograd_cache)


def test_entries_of_the_pattern_tables_are_restored():
    target, inputs = programs.block()
    watch(target, inputs, screen=True)
    before = entries()
    watched = watch(target, inputs, screen=True, vetoes=["_sfdp"])
    assert watched.fired
    after = entries()
    assert len(before) == len(after) > 100
    for (entry, attributes), (same, now) in zip(before, after, strict=True):
        assert entry is same
        assert attributes.keys() == now.keys()
        assert all(attributes[key] is now[key] for key in attributes)


def test_entries_are_restored_when_a_handler_raises():
    table = post_grad.pass_patterns[1]
    with planting.handler(table, planting.aten.sin.default, planting.raise_in_handler):
        before = entries()
        target, inputs = programs.sine()
        with pytest.raises(Exception, match="planted in a handler"):
            watch(target, inputs, screen=True)
        assert [attributes for _, attributes in entries()] == [attributes for _, attributes in before]


def test_second_compile_in_one_process_records_the_same_rewrites():
    target, inputs = programs.attention()
    first, second = watch(target, inputs), watch(target, inputs)
    assert first.fired == second.fired
    assert first.fired[0] == "_sfdp_pattern_1_inference"
    assert len(second.ledger.frames[0].forward_calls) == 1
    stages = [record.stage for record in second.ledger.frames[0].records]
    assert stages == ["pre_grad", "joint_graph", "post_grad"]


def test_caches_that_were_filled_without_a_recorder_do_not_hide_the_rewrites():
    target, inputs = programs.attention()
    torch._dynamo.reset()
    run(torch.compile(target), target, inputs)
    watched = watch(target, inputs)
    assert watched.fired[0] == "_sfdp_pattern_1_inference"
    assert watched.ledger.frames[0].find_record("post_grad") is not None


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recording_changes_no_bit_of_the_result(training: bool):
    target, inputs = programs.block(training=training)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        plain = run(torch.compile(target), target, inputs, backward=training)
    torch._dynamo.reset()
    watched = watch(target, inputs, backward=training)
    assert watched.fired
    assert len(plain) == len(watched.values) == (1 + training * len(list(target.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(plain, watched.values, strict=True))


def test_record_off_keeps_no_graphs_and_still_vetoes():
    plant = PLANTS["graph handler, joint stage"]
    watched = watch_plant(plant, record=False, screen=True)
    assert all(record.snapshots == [] for frame in watched.ledger.frames for record in frame.records)
    vetoed = watch_plant(plant, record=False, screen=True, vetoes=["sin_off"])
    assert vetoed.outcomes("sin_off") == {"vetoed": 1}


# -- the recorder never raises into the compile ---------------------------------------------------------


def failing(*args: object, **kwargs: object) -> object:
    raise RuntimeError("the recorder is broken")


@pytest.mark.parametrize(
    "module, function",
    [
        (recorder_module, "GraphState"),
        (recorder_module, "take_snapshot"),
        (recorder_module, "copy_tree"),
        (recorder_module.rule_labels, "find_location"),
    ],
)
def test_broken_recorder_lets_the_compile_succeed_and_says_so(
    monkeypatch: pytest.MonkeyPatch, module: object, function: str
):
    target, inputs = programs.attention()
    monkeypatch.setattr(module, function, failing)
    watched = watch(target, inputs)
    assert apart(watched.values, eager(target, inputs)) < 1e-5
    assert not all(unseen.harmless for unseen in watched.ledger.unseen)
    assert {missed.why for missed in watched.ledger.unseen} == {"RuntimeError: the recorder is broken"}


def test_recorder_that_cannot_tell_what_a_lowering_replaced_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "extract_match", failing)
    target, inputs = PLANTS["lowering"].program()
    with planting.lowering(post_grad.pass_patterns[0]):
        watched = watch(target, inputs)
    assert watched.fired == ["erf_off"]
    assert [missed.why for missed in watched.ledger.unseen] == ["RuntimeError: the recorder is broken"]
    assert any("post_grad" in unseen.stages for unseen in watched.ledger.unseen)


def test_vetoes_work_with_a_broken_recorder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder_module, "GraphState", failing)
    target, inputs = programs.attention()
    watched = watch(target, inputs, vetoes=["_sfdp"])
    assert set(watched.outcomes("_sfdp_pattern_1_inference")) == {"vetoed"}
