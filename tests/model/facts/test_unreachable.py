"""The reasons why rules cannot be reached: about rules that exist, and true where the compiler itself can be asked."""

from __future__ import annotations

import fnmatch

import pytest
import torch

from fuzzcompile.analyses import coverage
from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.model.compiler_toggles import TOGGLES
from fuzzcompile.model.facts import UnreachableReason, facts

pytestmark = pytest.mark.skipif(not facts().has_reasons, reason="reasons were not checked in this torch")


@pytest.fixture(scope="module")
def rules() -> list[KnownRule]:
    return [row for row in list_known_rules(torch.device("cpu")) if row.kind in ("pass", "pattern")]


def reason_for(rule: KnownRule, device: str, switched_on: frozenset[str] | None = None) -> UnreachableReason | None:
    return facts().find_reason(rule.stage, rule.name, device, switched_on or coverage.list_switched_on())


def test_every_name_is_registered(rules):
    names = [(reason.stage, name) for reason in facts().unreachable for name in reason.names]
    registered = [(rule.stage, rule.name) for rule in rules]
    assert [at for at in names if not any(at[0] == r[0] and fnmatch.fnmatchcase(r[1], at[1]) for r in registered)] == []


def test_tables_that_are_said_to_hold_no_rule_hold_none(rules):
    patterns = {(rule.stage, rule.pass_name) for rule in rules if rule.kind == "pattern"}
    said = [rule for rule in rules if (why := reason_for(rule, "cpu")) and why.group == "no rule registered"]
    assert len(said) > 5
    assert [rule.name for rule in said if (rule.stage, rule.name) in patterns] == []


def test_what_needs_a_gpu_has_no_reason_on_one(rules):
    (rule,) = [rule for rule in rules if rule.name == "unfuse_bias_add_to_pointwise"]
    assert reason_for(rule, "cpu") is not None and reason_for(rule, "cuda") is None


def test_a_setting_that_the_generator_switches_on_is_no_reason(rules):
    (rule,) = [rule for rule in rules if rule.name == "b2b_gemm_handler"]
    assert reason_for(rule, "cpu") is not None
    assert reason_for(rule, "cpu", frozenset({"b2b_gemm_pass"})) is None


def test_what_a_toggle_of_the_generator_runs_has_no_reason(rules):
    drawn = {key for toggle in TOGGLES for _, value in toggle.options if isinstance(value, dict) for key in value}
    run = [rule for rule in rules if rule.kind == "pass" and rule.name in drawn]
    assert len(run) > 10
    assert [rule.name for rule in run if reason_for(rule, "cpu")] == []
