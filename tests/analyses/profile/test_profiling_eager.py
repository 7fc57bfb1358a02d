"""Profiles whose sides run without a compiler: kernels of attention, dtypes, float64, recordings."""

from __future__ import annotations

import pytest
import torch
from stacks import CPU, profiled, row, stack

from fuzzcompile.analyses.profile import side_names
from fuzzcompile.analyses.profile.layer_profile import ProfileOptions, profile
from fuzzcompile.analyses.profile.recordings import read_recording, record
from fuzzcompile.analyses.profile.sides import WHOLE, CannotRun, Look, parse, parse_pair
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, UsageError
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.attention_backends import KERNELS

# Layer 1 scales by 1 % more where the flash kernel is off, as on a device that has none.
ONE_LAYER_OFF = """scale = 8**-0.5 * (1.01 if self.number == 1 and not torch.backends.cuda.flash_sdp_enabled() else 1.0)
        return scaled_dot_product_attention(q, k, v, scale=scale)"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_kernels_of_attention_differ_by_rounding_that_the_layers_pass_on(tmp_path, dtype):
    answer = profiled(stack(tmp_path, dtype=dtype), "sdpa:math", "sdpa:flash")
    assert answer["verdict"] == "expected_compounding" and answer["layer"] is None
    assert [layer["name"] for layer in answer["layers"]] == ["embed", *(f"layers.{i}" for i in range(3)), "head", WHOLE]
    last = row(answer, "layers.2")
    assert last["made"] > 0 and last["inherited"] > 0 and last["amplification"] > 0
    assert last["made_in_float64"] < 1e-12
    assert {"flash", "math"} <= {b["name"] for b in answer["attention"][0]["backends"] if b["usable"]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_that_scales_by_one_per_cent_more_is_named(tmp_path, dtype):
    answer = profiled(stack(tmp_path, ONE_LAYER_OFF, dtype=dtype), "sdpa:math", "sdpa:flash")
    assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1")
    wrong, clean = row(answer, "layers.1"), row(answer, "layers.2")
    assert wrong["made_in_float64"] > 1e-5 > 1e-12 > clean["made_in_float64"]
    if dtype == "bfloat16":  # the error is smaller than what rounding makes of the output
        assert row(answer, WHOLE)["rms_error"] < row(answer, WHOLE)["rounding"]
    else:
        assert clean["inherited"] > 10 * clean["made"]


def test_a_result_of_another_shape_is_no_rounding(tmp_path):
    longer = """x = scaled_dot_product_attention(q, k, v)
        off = self.number == 1 and not torch.backends.cuda.flash_sdp_enabled()
        return torch.cat([x, x], -2)[:, :, : x.shape[-2] + off]"""
    text = stack(tmp_path, longer).read_text().replace(".reshape(x.shape)", ".flatten(2)")
    text = text.replace("self.first(x + self.attention(x))", "self.first(x + self.attention(x)[:, : x.shape[1]])")
    (tmp_path / "longer.py").write_text(text)
    answer = profiled(tmp_path / "longer.py", "sdpa:math", "sdpa:flash", Look(depth=2))
    assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1.attention")
    assert "another number or shape" in answer["rule"]


def test_the_operator_is_named_where_operators_are_asked_for(tmp_path):
    answer = profiled(stack(tmp_path, ONE_LAYER_OFF), "sdpa:math", "sdpa:flash", Look(operators=True))
    assert answer["layer"] == "layers.1.attention: scaled_dot_product_attention"
    assert row(answer, "layers.2: gelu")["inherited"] > 0


def test_deeper_layers_are_looked_at_inside_their_blocks(tmp_path):
    answer = profiled(stack(tmp_path, ONE_LAYER_OFF), "sdpa:math", "sdpa:flash", Look(depth=2))
    assert answer["layer"] == "layers.1.attention"
    names = [layer["name"] for layer in answer["layers"]]
    assert names.index("layers.1.attention") < names.index("layers.1")


@pytest.mark.parametrize(("against", "reference"), [("dtype:bfloat16", "eager"), ("eager", "float64")])
def test_rounding_to_another_precision_is_rounding(tmp_path, against, reference):
    answer = profiled(stack(tmp_path), against, reference)
    assert answer["verdict"] == "expected_compounding"
    assert row(answer, WHOLE)["rms_error"] > 0


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
compiled = torch.compile(model)
with torch.no_grad():
    compiled(torch.randn(2, 5, 16))
"""


def test_the_modules_of_a_script_are_converted_as_well(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    case = load(path, CPU)
    native, narrow = (profile(case, CPU, ProfileOptions(parse(side))) for side in ("eager", "dtype:bfloat16"))
    assert native["verdict"] == "equal" and narrow["verdict"] == "expected_compounding"
    assert narrow["tolerance"]["dtype"] == "bfloat16" and row(narrow, "layers.1")["made"] > 1e-4
    assert profile(case, CPU, ProfileOptions(parse("eager")))["verdict"] == "equal"  # and converted back


def test_a_side_compared_with_itself_is_equal(tmp_path):
    answer = profiled(stack(tmp_path), "eager", "cpu")
    assert answer["verdict"] == "equal" and all(layer["max_error"] == 0 for layer in answer["layers"])


def test_a_reference_without_digits_is_called_unstable(tmp_path):
    chaos = "return torch.sin(1e9 * scaled_dot_product_attention(q, k, v))"
    answer = profiled(stack(tmp_path, chaos), "sdpa:math", "sdpa:flash")
    assert answer["verdict"] == "unstable_reference" and "leaves no digit" in answer["rule"]


def test_a_reference_that_does_not_repeat_itself_is_called_unstable(tmp_path):
    drawn = "return scaled_dot_product_attention(q, k, v) + 1e-3 * torch.randn(q.shape, generator=GENERATOR)"
    case = stack(tmp_path, drawn, more="\nGENERATOR = torch.Generator()\nGENERATOR.seed()\n")
    answer = profiled(case, "sdpa:math", "sdpa:flash")
    assert answer["verdict"] == "unstable_reference", answer["rule"]


def test_a_wrong_gradient_is_found_in_the_layer_whose_backward_makes_it(tmp_path):
    # Forward alike on both sides; where flash is off, layer 1's attention passes back 2 % too much.
    attend = """off = self.number == 1 and not torch.backends.cuda.flash_sdp_enabled()
        if off:
            v = v * 1.02 - v.detach() * 0.02
        return scaled_dot_product_attention(q, k, v)"""
    answer = profiled(stack(tmp_path, attend, training=True), "sdpa:math", "sdpa:flash")
    assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1")
    assert "gradients of layers.1" in answer["rule"]
    assert [layer["name"] for layer in answer["layers"] if layer["kind"] == "gradient"][:2] == [
        "head (gradient)",
        "layers.2 (gradient)",
    ]


def test_the_gradients_of_two_kernels_differ_by_rounding(tmp_path):
    answer = profiled(stack(tmp_path, training=True, dtype="bfloat16"), "sdpa:math", "sdpa:flash")
    assert answer["verdict"] == "expected_compounding"


def test_a_program_that_is_no_module_has_the_layers_that_it_calls(tmp_path):
    function = "\ndef make():\n    model, inputs = made()\n    return (lambda ids: model(ids).tanh()), inputs\n"
    path = stack(tmp_path, more=f"\nmade = make\n{function}")
    answer = profiled(path, "sdpa:math", "sdpa:flash")
    assert row(answer, "layers.2")["made"] > 0 and answer["verdict"] == "expected_compounding"


def test_activations_beyond_what_is_kept_are_sampled_and_said_to_be(tmp_path):
    answer = profiled(stack(tmp_path), "sdpa:math", "sdpa:flash", Look(budget=6000))
    assert row(answer, "layers.0")["made"] is not None
    sampled = [layer for layer in answer["layers"] if "samples" in layer.get("note", "")]
    assert not sampled  # tensors of up to 4096 elements are never sampled
    big = stack(tmp_path).read_text().replace("torch.randint(20, (2, 6))", "torch.randint(20, (2, 300))")
    (tmp_path / "big.py").write_text(big)
    answer = profiled(tmp_path / "big.py", "sdpa:math", "sdpa:flash", Look(budget=6000))
    assert "samples" in row(answer, "layers.2")["note"] and row(answer, "layers.2")["rms_error"] > 0
    assert answer["verdict"] == "expected_compounding", answer["rule"]
    # What float64 takes is kept apart: layers whose float64 form was sampled are judged natively.
    answer = profiled(tmp_path / "big.py", "sdpa:math", "sdpa:flash", Look(budget=90_000))
    kinds = {(layer["made"] is None, layer["made_in_float64"] is None) for layer in answer["layers"][:-1]}
    assert kinds >= {(False, False), (False, True)} and answer["verdict"] == "expected_compounding", answer["rule"]


def test_a_recording_stands_for_the_machine_that_made_it(tmp_path):
    path, recording = stack(tmp_path, ONE_LAYER_OFF, training=True), tmp_path / "flash.safetensors"
    done = record(load_case(path), CPU, parse("sdpa:flash"), recording, look=Look(budget=2**20))
    assert done.size <= 2**20 and done.calls > 6
    live, recorded = (profiled(path, side, "sdpa:math") for side in ("sdpa:flash", str(recording)))
    assert recorded["layer"] == live["layer"] == "layers.1"
    for name in ("layers.0", "layers.1", WHOLE, "layers.0 (gradient)"):
        # Products may depend on the alignment of their operands in memory.
        assert row(recorded, name)["rms_error"] == pytest.approx(row(live, name)["rms_error"], rel=1e-3)
    assert any("recorded as sdpa:flash" in note for note in recorded["notes"])


def test_a_recording_can_be_the_reference_sampled_or_whole(tmp_path):
    path, recording = stack(tmp_path, ONE_LAYER_OFF), tmp_path / "flash.safetensors"
    text = path.read_text().replace("torch.randint(20, (2, 6))", "torch.randint(20, (2, 300))")
    path.write_text(text)
    for budget, sampled in ((2**24, False), (100_000, True)):
        record(load_case(path), CPU, parse("sdpa:flash"), recording, look=Look(budget=budget))
        answer = profiled(path, "sdpa:math", str(recording))
        assert (answer["verdict"], answer["layer"]) == ("jump", "layers.1")
        assert row(answer, "layers.1")["rms_error"] > 100 * row(answer, "layers.0")["rms_error"]
        assert any(not call.outputs[0].whole for call in read_recording(recording).calls.values()) == sampled


def test_a_recording_of_other_weights_is_refused_with_what_differs(tmp_path):
    path, recording = stack(tmp_path), tmp_path / "run.safetensors"
    record(load_case(path), CPU, parse("eager"), recording, look=Look())
    path.write_text(path.read_text().replace("torch.manual_seed(0)", "torch.manual_seed(1)"))
    with pytest.raises(CaseError, match=r"weights differ.*embed\.weight"):
        profiled(path, str(recording), "eager")


def test_math_only_takes_the_kernels_out_of_the_comparison(tmp_path):
    answer = profiled(stack(tmp_path), "eager", "eager", math_only=True)
    (call,) = answer["attention"]
    assert [backend["name"] for backend in call["backends"] if backend["chosen"]] == ["math"]
    assert any("not for production" in note for note in answer["notes"])


def test_kernels_that_are_not_there_are_refused_with_the_reason(tmp_path):
    with pytest.raises(EnvironmentUnfit, match="efficient"):
        profiled(stack(tmp_path), "sdpa:efficient")


def test_operators_of_a_compiled_run_are_refused(tmp_path):
    with pytest.raises(UsageError, match="fuses operators"):
        profiled(stack(tmp_path), "inductor", "eager", Look(operators=True))


def test_a_case_that_raises_is_refused(tmp_path):
    with pytest.raises(CannotRun, match="raises as eager: ValueError"):
        profiled(stack(tmp_path, "raise ValueError('no')"), "sdpa:math")


@pytest.mark.parametrize(
    "text", ["eagre", "inductor:fast", "sdpa:slow", "dtype:int8", "cuda:x", "float64:1", "nothing.txt"]
)
def test_sides_that_do_not_exist_are_refused(text):
    with pytest.raises(UsageError, match="use"):
        parse(text)


def test_pairs_are_told_apart():
    sides = {name: parse(name) for name in ("eager", "inductor", "sdpa:math", "dtype:bfloat16", "float64")}
    kinds = {name: parse_pair(side, sides["eager"], torch.device("cpu")) for name, side in sides.items()}
    assert kinds == {
        "eager": "same_backend",
        "inductor": "same_backend",
        "sdpa:math": "across_backends",
        "dtype:bfloat16": "across_dtypes",
        "float64": "across_dtypes",
    }


def test_sides_are_named_after_the_kernels_that_can_be_forced():
    assert set(side_names.KERNELS) == set(KERNELS)


def test_a_layer_within_one_that_is_run_again_is_called_once(tmp_path):
    answer = profiled(stack(tmp_path, layers=1), "sdpa:math", "sdpa:flash", Look(depth=2))
    names = [layer["name"] for layer in answer["layers"]]
    assert "layers.0.attention" in names and "layers.0" in names
    assert not [name for name in names if "#" in name]
