"""Weights by name: they steer, reproducibly, and belong to the recipe."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch._functorch.config

from fuzzcompile.fuzz.generation.cases import draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, StaleRecipe, compute_generator_version
from fuzzcompile.fuzz.idioms.registry import idioms
from fuzzcompile.model.compiler_toggles import TOGGLES

COUNT = 300
STEERED = ("attention_where", "mixture_of_experts", "key_permuted", "freezing", "values_tied")


def drawn(profile: Profile) -> Counter[str]:
    return Counter(name for index in range(COUNT) for name in draw_case_at(0, index, profile).features)


@pytest.mark.slow
def test_a_heavier_name_is_drawn_more_often_and_a_weightless_one_never() -> None:
    usual = drawn(Profile())
    heavy = drawn(Profile().steer(dict.fromkeys(STEERED, 1000)))
    never = drawn(Profile().steer(dict.fromkeys(STEERED, 0)))
    for name in STEERED:
        assert heavy[name] > 1.5 * usual[name]
        assert never[name] == 0


def test_all_of_a_role_ruled_out_leaves_its_simplest() -> None:
    forms = Profile().steer({idiom.name: 0 for idiom in (*idioms("attention"), *idioms("layer"))})
    assert {draw_case_at(0, index, forms).spec.attention.idiom for index in range(20)} == {idioms("attention")[0].name}
    assert not any(draw_case_at(0, index, forms).spec.layer for index in range(20))
    nothing = {toggle.name: 0 for toggle in TOGGLES}
    assert not any(draw_case_at(0, index, Profile().steer(nothing)).spec.compile.toggles for index in range(40))


def test_settings_that_the_torch_lacks_are_not_drawn() -> None:
    counted = drawn(Profile(without=("freezing", "linear_folding")))
    assert not counted["freezing"]
    assert not counted["linear_folding"]


def test_settings_of_the_backward_are_drawn_where_there_is_one_and_stand_in_the_config_that_has_them() -> None:
    of_backward = [toggle for toggle in TOGGLES if toggle.only == "gradients"]
    profile = Profile().steer({toggle.name: 1000 for toggle in of_backward})
    cases = [draw_case_at(0, index, profile, "block") for index in range(120)]
    having = [case for case in cases if {toggle.name for toggle in of_backward} & set(case.spec.compile.toggles)]
    assert len(having) > 5
    for case in having:
        space: dict[str, Any] = {}
        exec(case.source, space)
        entries = space["CONFIG"]["functorch"]
        assert space.get("BACKWARD") or space.get("GRAD") == "enabled"
        assert all(getattr(torch._functorch.config, name) != value for name, value in entries.items())


def test_seed_and_weights_fix_the_case_in_whatever_order_they_are_given() -> None:
    profile = Profile().steer({"key_permuted": 300, "freezing": 50})
    reordered = Profile().steer({"freezing": 50, "key_permuted": 300})
    assert profile == reordered
    assert [draw_case_at(4, index, profile) for index in range(10)] == [
        draw_case_at(4, index, reordered) for index in range(10)
    ]


def test_choices_are_read_under_the_weights_they_were_drawn_under() -> None:
    profile = Profile().steer({"attention_unscaled": 2000})
    for index in range(10):
        case = draw_case_at(2, index, profile)
        stored = Profile.from_json(json.loads(json.dumps(profile.to_json())))
        assert stored == profile
        assert from_choices(case.choices, stored) == case


@pytest.mark.parametrize("version", [None, "1", "2-00000000"])
def test_a_recipe_of_another_generator_is_refused_in_one_sentence(version: str | None) -> None:
    data = {**Profile().to_json(), "generator": version}
    with pytest.raises(StaleRecipe, match=r"^The recipe was drawn by another version of the generator .*\.$"):
        Profile.from_json(data)
    first = {"near_misses": True, "dtypes": ["float32"], "training": True}
    with pytest.raises(StaleRecipe):
        Profile.from_json(first)


def test_the_version_hangs_on_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("fuzzcompile.fuzz.generation.profile")
    before = compute_generator_version()
    names = module.list_names()
    monkeypatch.setattr(
        module,
        "list_names",
        lambda *, gpu, distributed=False: (replace(names[0], weight=names[0].weight + 1), *names[1:]),
    )
    after = compute_generator_version()
    assert after != before
    assert after.partition("-")[0] == before.partition("-")[0]


@pytest.mark.parametrize("weight", [-1, 10_001])
def test_a_weight_that_is_no_percentage_is_refused(weight: int) -> None:
    with pytest.raises(ValueError, match="percentages"):
        Profile().steer({"freezing": weight})
