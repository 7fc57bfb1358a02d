"""Conformance: what fuzzcompile holds on to in the installed torch is there and does what it relies on.

Small enough for every run of the tests, and run on other versions of torch by ``make compat``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import planted
import pytest
import torch
from planted import ERROR, PLANTED
from watching import apart, eager, watch

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch import conformance, pass_patches, patch_table, torch_patch
from fuzzcompile.compiler.watch.rule_labels import get_base_name, make_entry_label
from fuzzcompile.model.facts import is_tried_release
from fuzzcompile.run.case import CompileSettings

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def probed() -> dict[str, str]:
    return conformance.probe_patches()


@pytest.mark.parametrize("name", [patch.name for patch in patch_table.PATCHES])
def test_probe_of_the_hook_passes(name: str, probed: dict[str, str]):
    assert probed.get(name) is None


def test_this_version_is_one_of_those_that_are_tried():
    assert is_tried_release(torch.__version__)
    assert not is_tried_release("2.10.1+cpu")
    assert not is_tried_release("2.16.0")
    assert not is_tried_release("2.15.0a0+git1234"), "a pre-release may be of any day"
    assert not is_tried_release("2.12.1"), "it lies between two that were tried"


# -- planted rewrites ---------------------------------------------------------------------------------


def test_planted_rewrite_makes_the_result_wrong(tried):
    assert tried.error(tried.watched) > ERROR / 10


def test_it_is_in_the_ledger_under_its_stage_and_name(tried):
    found = [rewrite.label for _, _, rewrite in tried.watched.ledger.list_rewrites()]
    assert (tried.plant.stage, tried.plant.rewrite) in {(label.stage, get_base_name(label.rewrite)) for label in found}
    assert tried.watched.ledger.unseen == []


def test_it_has_a_place_in_a_file(tried):
    (label, *_) = [
        rewrite.label
        for _, _, rewrite in tried.watched.ledger.list_rewrites()
        if get_base_name(rewrite.label.rewrite) == tried.plant.rewrite
    ]
    assert label.source is not None
    assert label.source.endswith(".py")
    assert label.line > 0


def test_veto_repairs_it(tried):
    assert tried.error(tried.vetoed) < ROUNDING
    assert tried.vetoed.outcomes(tried.plant.rewrite).keys() == {"vetoed"}


def test_screening_shows_it(tried):
    if tried.screened is None:
        pytest.skip("a lowering is replayed as what it replaced")
    assert tried.error(tried.screened) > ERROR / 10


def test_replay_blames_it_and_nothing_else(tried):
    semantic = [step for step in tried.watched.steps if step.is_semantic or step.moves_natively]
    names = {(step.label.stage, get_base_name(step.label.rewrite)) for step in semantic}
    assert names == ({(tried.plant.stage, tried.plant.rewrite)} if tried.plant.replayable else set())


def test_stages_come_in_order_with_their_inputs(tried):
    (frame,) = tried.watched.ledger.frames
    stages = list(dict.fromkeys(record.stage for record in frame.records if record.stage != "partition"))
    frozen = ["freezing"] if tried.plant.config.get("freezing") else []
    assert stages == ["pre_grad", "joint_graph", *frozen, "post_grad"]
    assert all(record.snapshots for record in frame.records)
    assert len(frame.dynamo_calls) == len(frame.forward_calls) == 1
    assert len(frame.backward_calls) == len(frame.partitions) == int(tried.plant.backward)
    post_grad = frame.find_record("post_grad")
    inputs = post_grad.snapshots[0].graph.find_nodes(op="placeholder")
    assert len(inputs) == len(frame.forward_calls[0])


# -- patterns -----------------------------------------------------------------------------------------


def test_check_refuses_and_is_counted():
    x = planted.waves()
    with planted.handler(planted._JOINT, planted.sine_never, extra_check=lambda match: False):
        watched = watch(planted.sine, (x,), screen=True)
    assert watched.outcomes("sine_never") == {"refused": 1}
    assert apart(watched.values, eager(planted.sine, (x,))) < ROUNDING


def raising(match: Any) -> bool:
    raise ValueError("planted in a check")


def test_error_in_a_check_is_laid_at_its_pattern():
    initialise_patterns(torch.device("cpu"))
    with (
        planted.handler(planted._JOINT, planted.sine_never, extra_check=raising),
        pytest.raises(Exception, match="planted in a check"),
        open_session(CompileSettings(), Compilation()) as session,
    ):
        session.compile(planted.sine)(planted.waves())
    assert (session.ledger.failed_in.stage, session.ledger.failed_in.rewrite) == ("joint_graph", "sine_never")


def test_attention_patterns_have_their_names():
    from torch._inductor.fx_passes import joint_graph

    initialise_patterns(torch.device("cpu"))
    entries = [entry for table in joint_graph.pass_patterns for found in table.patterns.values() for entry in found]
    names = {get_base_name(make_entry_label(entry, "joint_graph", None).rewrite) for entry in entries}
    assert {f"_sfdp_pattern_{number}" for number in (1, 3, 5, 11, 12, 18, 19)} <= names


def test_functions_that_are_no_observed_pass_are_found():
    names = pass_patches.list_plain_passes()
    assert {"constant_fold", "freezing_passes", "fx_graph_cse", "replace_random_passes", "quant_lift_up"} <= set(names)
    assert not {"joint_graph_passes", "replace_node_with_constant", "fake_tensor_prop"} & set(names)


# -- a torch whose internals moved ----------------------------------------------------------------------


def replace_patch(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    tables = {table: rows for table, rows in vars(patch_table).items() if table.isupper() and isinstance(rows, tuple)}
    for table, rows in tables.items():
        if not all(isinstance(patch, torch_patch.Patch) for patch in rows):
            continue
        changed = [dataclasses.replace(patch, **changes) if patch.name == name else patch for patch in rows]
        monkeypatch.setattr(patch_table, table, tuple(changed))


def raising_wrap(recorder: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise TypeError("takes other arguments in this torch")


FAMILIES = ("plain passes", "scalar operators")


def no_members(watcher: Any) -> tuple[()]:
    return ()


def blind_wrap(recorder: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


@pytest.fixture
def probes_again():
    yield
    torch_patch.switched_off.clear()


def misfit_wrap(recorder: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs, of_another_torch=True)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [raising_wrap, misfit_wrap])
@pytest.mark.parametrize("name", ["post-grad stage", "pattern pass", "lowered node"])
def test_patch_whose_wrapper_raises_is_named_and_switched_off(name: str, wrap, monkeypatch, probes_again):
    replace_patch(monkeypatch, name, wrap=wrap)
    failed = conformance.probe_patches()
    assert failed[name].startswith("TypeError: ")
    x = planted.waves()
    watched = watch(planted.sine, (x,), screen=True)
    assert apart(watched.values, eager(planted.sine, (x,))) < ROUNDING
    seen = {(missed.what, missed.why) for missed in watched.ledger.unseen}
    assert ((name, failed[name]) in seen) is (name in {patch.name for patch in patch_table.GRAPHS})


def breaking_wrap(recorder: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hands the compile something that it cannot work with, so that the compiler itself raises."""
    return None


def test_patch_that_breaks_compiles_is_found_and_switched_off(monkeypatch, probes_again):
    replace_patch(monkeypatch, "pre-grad stage", wrap=breaking_wrap)
    assert "pre-grad stage" in conformance.probe_patches()


# Blind patches whose loss is looked for in every run of the tests; the others take a second or two each.
TELLING = {"post-grad stage", "pattern pass", "partition"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(patch.name, marks=() if patch.name in TELLING else pytest.mark.slow)
        for patch in patch_table.PATCHES
        if patch.probe is not None
    ],
)
def test_patch_that_sees_nothing_any_more_is_named(name: str, monkeypatch, probes_again):
    replace_patch(monkeypatch, name, wrap=blind_wrap, **({"members": no_members} if name in FAMILIES else {}))
    assert name in conformance.probe_patches()
    assert name in torch_patch.switched_off


def test_patch_without_a_place_is_in_the_ledger(monkeypatch):
    replace_patch(monkeypatch, "partition", attribute="partition_fn_of_another_torch")
    watched = watch(planted.sine, (planted.waves(),), screen=True)
    (missed,) = watched.ledger.unseen
    assert missed.what == "partition" and "partition_fn_of_another_torch" in missed.why
    assert "partition" in missed.stages and "post_grad" not in missed.stages


def test_plants_cover_what_works_on_graphs():
    assert {plant.hook for plant in PLANTED} >= {
        "pre-grad stage",
        "joint-graph stage",
        "post-grad stage",
        "freezing stage",
    }
