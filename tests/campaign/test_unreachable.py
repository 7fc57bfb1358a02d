"""The written reasons: of things that exist, and true where the compiler itself can be asked."""

from __future__ import annotations

import fnmatch
from functools import reduce

import pytest
import torch
from torch._inductor import config

from fuzzcompile.commands.unreachable import REASONS, reason_for
from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.generation.toggles import TOGGLES

pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="reasons were checked in torch 2.13")


@pytest.fixture(scope="module")
def rules() -> list[Known]:
    return [row for row in known_to(torch.device("cpu")) if row.kind in ("pass", "pattern")]


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: f"{reason.stage} {reason.names.split()[0]}")
def test_every_name_is_registered_and_the_reason_a_sentence(reason, rules):
    names = [row.name for row in rules if row.stage == reason.stage]
    for name in reason.names.split():
        assert fnmatch.filter(names, name), name
    assert reason.why.endswith(".") and reason.why[0].isupper()


def test_a_reason_that_hangs_on_a_setting_names_one_that_is_off():
    for reason in REASONS:
        if reason.setting is not None:
            name, _, key = reason.setting.partition(":")
            value = reduce(getattr, name.split("."), config)
            assert not (value if not key else key in value), reason.setting


def test_tables_that_are_said_to_hold_no_rule_hold_none(rules):
    patterns = {(row.stage, row.pass_name) for row in rules if row.kind == "pattern"}
    said = [row for row in rules if (found := reason_for(row, "cpu")) and found.group == "no rule registered"]
    assert len(said) > 5
    assert [row.name for row in said if (row.stage, row.name) in patterns] == []


def test_what_needs_a_gpu_has_no_reason_on_one(rules):
    (row,) = [row for row in rules if row.name == "unfuse_bias_add_to_pointwise"]
    assert reason_for(row, "cpu") is not None and reason_for(row, "cuda") is None


def test_a_setting_that_the_generator_switches_on_is_no_reason(rules, monkeypatch):
    (row,) = [row for row in rules if row.name == "b2b_gemm_handler"]
    assert reason_for(row, "cpu") is not None
    from fuzzcompile.commands import unreachable

    monkeypatch.setattr(unreachable, "_switched_on", lambda: frozenset({"b2b_gemm_pass"}))
    assert reason_for(row, "cpu") is None


def test_what_a_toggle_of_the_generator_runs_has_no_reason(rules):
    drawn = {key for toggle in TOGGLES for _, value in toggle.options if isinstance(value, dict) for key in value}
    run = [row for row in rules if row.kind == "pass" and row.name in drawn]
    assert len(run) > 10
    assert [row.name for row in run if reason_for(row, "cpu")] == []
