"""Profiles of compiled runs: the layers inside one graph."""

from __future__ import annotations

import pytest
import torch
from pattern_tables import restored
from stacks import CLEAN, profiled, row, stack
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import Arg, CallFunction, Match, register_graph_pattern

from fuzzcompile.analyses.profile.sides import WHOLE

WHEN_COMPILED = """scale = 8**-0.5 * (1.01 if self.number == 1 and torch.compiler.is_compiling() else 1.0)
        return scaled_dot_product_attention(q, k, v, scale=scale)"""


@pytest.mark.slow
def test_an_error_below_the_rounding_of_bfloat16_is_found_where_it_is_made(tmp_path):
    answer = profiled(stack(tmp_path, WHEN_COMPILED, dtype="bfloat16"), "inductor")
    assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1")
    whole = row(answer, WHOLE)
    assert whole["rms_error"] < whole["rounding"]
    assert row(answer, "layers.2")["made_in_float64"] < 1e-12 < 1e-5 < row(answer, "layers.1")["made_in_float64"]


@pytest.fixture
def second_erf_off():
    """The second erf of a graph gets 1 % too large: a rewrite that is wrong in one place of many."""
    count = 0

    def off(match: Match, x: torch.fx.Node) -> None:
        nonlocal count
        count += 1
        if count == 2:
            match.replace_by_example(lambda x: torch.erf(x) * 1.01, [x])

    with restored(post_grad.pass_patterns[1]) as table:
        register_graph_pattern(CallFunction(torch.ops.aten.erf.default, Arg()), pass_dict=table)(off)
        yield


@pytest.mark.slow
def test_a_rewrite_that_is_wrong_in_one_place_jumps_in_its_layer(tmp_path, second_erf_off):
    answer = profiled(stack(tmp_path, CLEAN), "inductor")
    assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1")
    assert row(answer, "layers.2")["inherited"] > 10 * row(answer, "layers.2")["made"]


@pytest.mark.slow
def test_a_clean_training_step_is_compounding_in_its_layers_and_gradients(tmp_path):
    answer = profiled(stack(tmp_path, layers=1, training=True), "inductor")
    assert answer["verdict"] == "expected_compounding", answer["rule"]
    gradients = [layer for layer in answer["layers"] if layer["kind"] == "gradient"]
    assert len(gradients) == 3 and all(layer["made_in_float64"] is not None for layer in gradients)
    assert row(answer, "layers.0")["made_in_float64"] < 1e-12


@pytest.mark.slow
def test_a_backend_without_code_generation_can_be_profiled_against_a_compiled_one(tmp_path):
    answer = profiled(stack(tmp_path, layers=2), "aot_eager", "inductor")
    assert answer["verdict"] == "expected_compounding", answer["rule"]
    assert row(answer, "layers.1")["made"] is not None
