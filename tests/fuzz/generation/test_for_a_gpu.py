"""What is drawn where the compiler works for a GPU, and that nothing else changes."""

from __future__ import annotations

import json

import pytest

from fuzzcompile.fuzz.campaign.case_sources import fit_installed_torch
from fuzzcompile.fuzz.generation.cases import draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import GPU_REPERTOIRE, Profile, StaleRecipe, compute_generator_version
from fuzzcompile.model.compiler_toggles import FOR_GPU, find_toggle

FOR_A_GPU = Profile(gpu=True)


@pytest.fixture(scope="module")
def specs():
    return [draw_case_at(0, index, FOR_A_GPU).spec for index in range(400)]


def test_half_precision_comes_first_and_every_setting_of_gpus_is_drawn(specs):
    assert sum(spec.dtype != "float32" for spec in specs) > 0.65 * len(specs)
    drawn = {name for spec in specs for name in spec.compile.toggles}
    assert drawn >= {setting.name for setting in FOR_GPU if setting.weight > 1}
    assert not any(find_toggle(name).is_cpu_only for name in drawn)


def test_sizes_reach_what_only_gpus_have_and_stay_affordable(specs):
    assert any(spec.dims.batch * spec.dims.sequence > 128 for spec in specs), "no sum over columns is split"
    assert any(spec.dims.head_dim > 256 for spec in specs), "no head is too wide for flash attention"
    assert GPU_REPERTOIRE.most_features is not None and all(
        spec.dims.width <= GPU_REPERTOIRE.most_features for spec in specs
    )


def test_its_recipes_have_a_version_of_their_own():
    assert compute_generator_version(gpu=True) != compute_generator_version()
    stored = Profile.from_json(json.loads(json.dumps(FOR_A_GPU.to_json())))
    assert stored == FOR_A_GPU
    case = draw_case_at(1, 3, FOR_A_GPU)
    assert from_choices(case.choices, stored) == case
    with pytest.raises(StaleRecipe):
        Profile.from_json({**FOR_A_GPU.to_json(), "gpu": False})


def test_a_profile_stored_before_there_were_targets_is_still_read():
    before = {key: value for key, value in Profile().to_json().items() if key != "gpu"}
    assert Profile.from_json(before) == Profile()


def test_settings_of_gpus_are_drawn_for_a_target_only():
    gpus = {setting.name for setting in FOR_GPU}
    plain = fit_installed_torch(Profile())
    assert not plain.gpu and fit_installed_torch(Profile(), "cuda:sm_90").gpu
    assert not any(gpus & set(draw_case_at(0, index, plain).spec.compile.toggles) for index in range(100))
