"""Cases from a seed: the same everywhere, rarely alike, and all of them programs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, list_names
from fuzzcompile.fuzz.generation.rendering import render
from fuzzcompile.fuzz.generation.spec import Dims, FurtherCall
from fuzzcompile.fuzz.idioms.registry import idiom
from fuzzcompile.run.runs import enter_grad_mode
from fuzzcompile.run.tensors import name_leaves

EVERYTHING = Profile()
CLEAN = Profile(near_misses=False)
PLAIN = Profile(near_misses=False, dtypes=("float32",), training=False)


def cases(profile: Profile, count: int, seed: int = 0) -> list[GeneratedCase]:
    return [draw_case_at(seed, index, profile) for index in range(count)]


def run_in_eager(case: GeneratedCase) -> list[torch.Tensor]:
    """Run a case as the contract says, all its calls and backward passes included."""
    namespace: dict[str, Any] = {}
    exec(compile(case.source, "case.py", "exec"), namespace)
    model, inputs = namespace["make"]()
    assert getattr(model, "training", case.spec.training) == case.spec.training
    torch.manual_seed(0)
    outputs: list[torch.Tensor] = []
    with enter_grad_mode(namespace.get("GRAD", "enabled" if "BACKWARD" in namespace else "no_grad")):
        for call in (inputs, *namespace.get("CALLS", ())):
            made = namespace["run"](model, call) if "run" in namespace else model(*call)
            tensors = [leaf for _, leaf in name_leaves("out", made) if isinstance(leaf, torch.Tensor)]
            if namespace.get("BACKWARD"):
                sum(output.float().sum() for output in tensors if output.requires_grad).backward()
            outputs += tensors
    return outputs


@pytest.mark.parametrize("profile", [EVERYTHING, CLEAN, PLAIN], ids=["everything", "clean", "plain"])
def test_every_case_runs_in_eager_and_without_near_misses_gives_finite_outputs(profile: Profile) -> None:
    for case in (case for case in cases(profile, 40) if "refused" not in case.features):
        for output in run_in_eager(case):
            if not profile.near_misses:
                assert output.isfinite().all(), case.source


def test_a_case_is_the_same_in_another_process_whatever_was_drawn_before() -> None:
    program = (
        "from fuzzcompile.fuzz.generation.cases import Profile, draw_case_at\n"
        "print(*(draw_case_at(7, index, Profile()).sha256 for index in (5, 3, 4)))"
    )
    drawn = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert drawn.stdout.split() == [draw_case_at(7, index, EVERYTHING).sha256 for index in (5, 3, 4)]
    assert not drawn.stderr


def test_seed_index_and_profile_each_matter() -> None:
    base = draw_case_at(0, 0, EVERYTHING).sha256
    assert base != draw_case_at(1, 0, EVERYTHING).sha256
    assert base != draw_case_at(0, 1, EVERYTHING).sha256
    assert base != draw_case_at(0, 0, PLAIN).sha256


def test_the_same_case_makes_the_same_values_twice() -> None:
    for case in cases(EVERYTHING, 5):
        for first, second in zip(run_in_eager(case), run_in_eager(case), strict=True):
            assert torch.equal(first.nan_to_num(), second.nan_to_num())


@pytest.mark.slow
def test_cases_are_rarely_alike_even_apart_from_their_seed(many: list[GeneratedCase]) -> None:
    drawn = many[:500]
    assert len({case.sha256 for case in drawn}) == 500
    assert len({replace(case.spec, seed=0) for case in drawn}) >= 495


def test_choices_replay_the_case() -> None:
    for case in cases(EVERYTHING, 20):
        assert from_choices(case.choices, EVERYTHING) == case


def test_choices_that_end_early_or_were_mutated_still_make_a_case() -> None:
    randomness = random.Random(0)
    for case in cases(EVERYTHING, 20):
        cut = case.choices[: randomness.randrange(len(case.choices))]
        flipped = bytearray(case.choices)
        flipped[randomness.randrange(len(flipped))] ^= 0xFF
        for changed in (from_choices(choices, EVERYTHING) for choices in (cut, bytes(flipped))):
            if "refused" not in changed.features:
                run_in_eager(changed)


def test_no_choices_at_all_make_one_attention_over_q_k_and_v() -> None:
    assert from_choices(b"", EVERYTHING).source == (
        "import torch\n"
        "from torch import nn\n"
        "\n\n"
        "class Model(nn.Module):\n"
        "    def forward(self, q, k, v):\n"
        "        scores = (q @ k.transpose(-2, -1)) * 0.7071\n"
        "        weights = scores.softmax(-1)\n"
        "        return weights @ v\n"
        "\n\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    q = torch.randn(1, 1, 2, 2)\n"
        "    k = torch.randn(1, 1, 2, 2)\n"
        "    v = torch.randn(1, 1, 2, 2)\n"
        "    return Model().eval(), (q, k, v)\n"
    )


def test_the_json_of_a_spec_names_what_it_is_made_of() -> None:
    for case in cases(EVERYTHING, 40):
        data = json.loads(json.dumps(case.spec.to_json()))
        assert Dims(**data["dims"]) == case.spec.dims and data["attention"]["idiom"] == case.spec.attention.idiom
        assert data["idioms"] == list(case.spec.idioms)
        assert data["near_misses"] == list(case.spec.near_misses)


def test_the_spec_alone_renders_the_source() -> None:
    for case in cases(EVERYTHING, 20):
        assert render(case.spec) == case.source


def test_the_mix_is_light_and_has_both_passes(many: list[GeneratedCase]) -> None:
    drawn = [case.spec for case in many[:400]]
    layers = Counter(spec.block.layers if spec.block else 0 for spec in drawn)
    assert layers[0] > 0.4 * len(drawn)
    assert layers[2] + layers[3] + layers[4] < 0.15 * len(drawn)
    assert 0.2 < sum(spec.backward for spec in drawn) / len(drawn) < 0.45
    assert 0.4 < sum(spec.dtype == "float32" for spec in drawn) / len(drawn) < 0.6
    assert 0.05 < sum(bool(spec.compile.calls) for spec in drawn) / len(drawn) < 0.2
    assert 0.1 < sum(bool(spec.compile.toggles) for spec in drawn) / len(drawn) < 0.4
    trained = [case.spec for case in many if case.spec.training]
    dropout = Counter(spec.attention.dropout for spec in trained if spec.attention.dropout is not None)
    assert dropout[0.0]
    assert dropout[0.1]


def test_further_calls_differ_from_the_first_and_change_nothing_in_the_module() -> None:
    calls = 0
    for case in cases(EVERYTHING, 150):
        if not case.spec.compile.calls or any(idiom(name).traits.recalled for name in case.spec.idioms):
            continue
        namespace: dict[str, Any] = {}
        exec(compile(case.source, "case.py", "exec"), namespace)
        first, *further = namespace["make"]()[1], *namespace["CALLS"]
        assert len(further) == len(case.spec.compile.calls)
        for inputs in further:
            calls += 1
            assert [tensor.dim() for tensor in first] == [tensor.dim() for tensor in inputs]
            assert list(map(_form, first)) != list(map(_form, inputs))
    assert calls >= 5


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.requires_grad


def test_sizes_of_further_calls_are_named_by_how_they_relate_to_the_first() -> None:
    first = Dims(2, 5, 3, 8, 7)
    assert FurtherCall("many", "batch").dims(first) == Dims(17, 2, 3, 8, 7)
    assert FurtherCall("none", "one").dims(first) == Dims(0, 1, 3, 8, 7)
    assert FurtherCall("sequence", "head_dim").dims(first) == Dims(5, 8, 3, 8, 7)


def test_a_case_that_is_exported_asks_for_nothing_that_export_lacks() -> None:
    elsewhere = [case for case in cases(EVERYTHING, 300) if case.spec.compile.path != "compile"]
    assert {case.spec.compile.path for case in elsewhere} == {"export", "aoti", "cached"}
    for case in (case for case in elsewhere if case.spec.compile.path != "cached"):
        how = case.spec.compile
        assert not (how.mode or how.fullgraph or how.mark or how.autocast or case.spec.training)
        assert how.path == "export" or not case.spec.backward
        assert f'PATH = "{how.path}"' in case.source


def test_a_layer_with_python_state_is_called_again() -> None:
    recalled = [case for case in cases(EVERYTHING, 600) if "recompiled" in case.features]
    assert recalled
    assert all(case.spec.compile.calls for case in recalled)


def test_a_case_knows_what_it_is_made_of() -> None:
    known = {name.name for name in list_names()}
    for case in cases(EVERYTHING, 100):
        assert len(set(case.features)) == len(case.features)
        assert {*case.spec.idioms, *case.spec.near_misses} <= known & set(case.features)
        assert f"dtype_{case.spec.dtype}" in case.features


def test_a_profile_bounds_dtype_and_training() -> None:
    profile = Profile(dtypes=("float16",), training=False)
    for case in cases(profile, 50):
        assert case.spec.dtype == "float16"
        assert not case.spec.training
        assert not case.spec.backward


def test_a_profile_refuses_a_dtype_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="float8"):
        Profile(dtypes=("float8",))
