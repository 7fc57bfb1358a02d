"""A profile in the terminal: verdict, rule, numbers, and one thing to do next."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from profiles import CALL, KERNELS, WHOLE, jump, layer, profile
from rich.console import Console
from triage_reports import report

from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.report.profile_report import advice, attention_line, print_profile


def printed(of: dict[str, Any], **options: Any) -> str:
    stream = io.StringIO()
    print_profile(Console(file=stream, width=120), of, name="bert.py", **options)
    return stream.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if f" {name} " in line)


def test_the_verdict_its_meaning_and_its_rule_come_first():
    first, second, *_ = printed(profile()).splitlines()
    assert first.startswith("bert: expected_compounding: rounding explains what each layer adds")
    assert "[inductor against eager, torch 2.13.0, cpu]" in first
    assert second == "  rule: no layer makes more than 0.8 times its rounding, 6 are allowed."


def test_a_row_holds_every_number_in_the_order_of_the_headings():
    text = printed(profile(layers=[layer("a.b", 3), WHOLE]))
    assert row(text, "a.b") == ["a.b", "2", "1.2e-05", "3.0e-06", "1.000000", "5.0e-07", "6.0e-07", "3.0e-06", "1.25",
                                "3.3e-06", "3.6e-06"]  # fmt: skip
    # What was not measured is no zero.
    assert row(text, "program)")[-6:] == ["-", "-", "-", "-", "1.3e-05", "1.4e-05"]


def test_the_jump_is_marked_and_no_other_row():
    lines = printed(jump()).splitlines()
    assert [line.split()[1] for line in lines if line.startswith(">")] == ["bert.encoder.layer.7"]
    assert row("\n".join(lines), "bert.encoder.layer.7")[6] == "0.25"


def test_of_many_layers_those_that_say_most_are_shown():
    layers = [layer(f"h.{index}", made=1e-9 * index) for index in range(100)]
    text = printed(jump(layers=[*layers, WHOLE], layer="h.3"))
    assert "> h.3 " in text and " h.99 " in text and "(whole program)" in text and " h.4 " not in text
    assert "and 61 more layers" in text


def test_what_was_not_measured_is_said_once_for_all_its_layers():
    note = "it takes a cache"
    layers = [layer("h.0", note=note), layer("h.1", note=note), layer("h.2", non_finite="a number is not finite")]
    text = printed(profile(layers=layers, notes=["the taps moved the output"]))
    assert "  h.0, h.1: it takes a cache\n" in text and "  h.2: a number is not finite\n" in text
    assert "  note: the taps moved the output\n" in text


def test_kernels_of_attention_stand_with_the_reasons_of_those_that_refuse():
    assert attention_line(CALL) == (
        "attention, 12 x float32[2, 4, 8, 16] causal: flash (chosen); math; not efficient or cudnn: It needs CUDA"
    )
    assert attention_line({**CALL, "backends": [], "note": "on meta"}).endswith("causal: on meta")
    off = {**KERNELS[1], "usable": False, "chosen": False, "reason": "switched off"}
    said = attention_line({**CALL, "backends": [KERNELS[0], off, *KERNELS[2:]]})
    assert said.endswith("causal: math; not flash: switched off; not efficient or cudnn: It needs CUDA")


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (profile("equal"), "nothing: the values are the same"),
        (profile(), "a test of the output has to allow for 5e-05; --math-only"),
        (profile(reference="sdpa:math"), "has to allow for 5e-05"),
        (profile("unstable_reference"), "`fuzzcompile profile bert.py --against float64`"),
        (jump(), "`fuzzcompile profile bert.py --module bert.encoder.layer.7 --against inductor --depth 2` shows"),
        (jump(layer=None), "look deeper: `fuzzcompile profile bert.py --against inductor --depth 3`"),
        (jump(against="sdpa:math"), "`fuzzcompile profile bert.py --against sdpa:math --ops` shows which operator"),
        (jump(against="cuda", reference="inductor"), "--against cuda --depth 2` shows which part of it"),
        (jump(against="cuda", layer="h.3: softmax"), "compare h.3: softmax alone on both sides"),
        (jump(against="amd.safetensors"), "record again with a larger --depth or --ops"),
        (profile(layers=[]), "nothing to fix"),
    ],
)
def test_there_is_one_thing_to_do_next(of, said):
    assert said in advice(of, "bert.py") and printed(of).count("what to do:") == 1


def test_the_math_kernel_is_proposed_only_where_attention_could_take_another():
    assert "--math-only" not in advice(profile(reference="sdpa:math"), "bert.py")
    assert "--math-only" not in advice(profile(attention=[]), "bert.py")


def test_a_triaged_jump_is_told_to_be_reported_as_its_layer():
    text = printed(jump(triage=report("miscompile"), layer="bert.encoder.layer.7#2"))
    assert "bert.encoder.layer.7#2 alone, on its own inputs:" in text and text.count("what to do:") == 1
    assert "`fuzzcompile triage bert.py --module bert.encoder.layer.7 --proof` shows the proof, and" in text
    assert "`fuzzcompile minimize bert.py`" in text


def test_a_layer_without_a_bug_of_its_own_leaves_the_whole_to_be_reported():
    of = jump(triage=report("rounding"), triage_whole=report("miscompile"))
    assert "`fuzzcompile minimize bert.py` makes the reproducer" in advice(of, "bert.py")
    # Nothing wrong in either: the layer is looked into.
    assert "shows which part of it" in advice(jump(triage=report("rounding")), "bert.py")


def test_a_gradient_is_of_its_layer_and_does_not_count_as_the_output():
    gradients = [layer("h.1 (gradient)", kind="gradient", max_error=9.0), layer("(others) (gradient)", kind="gradient")]
    of = profile(layers=[layer("h.1"), WHOLE, *gradients])
    assert "allow for 5e-05" in advice(of, "bert.py")
    wrong = jump(layer="h.1 (gradient)", triage=report("miscompile"))
    assert "--module h.1 --proof` shows the proof" in advice(wrong, "bert.py")
    assert "--depth 3" in advice(jump(layer="(others) (gradient)"), "bert.py")


def test_a_layer_of_a_module_is_named_from_the_whole():
    said = advice(jump(triage=report("miscompile"), layer="attn"), CommandSubject("bert.py", {"module": "h.3"}))
    assert "`fuzzcompile triage bert.py --module h.3.attn --proof`" in said


def test_an_error_outside_of_the_layers_is_no_layers():
    assert "made outside of the layers" in printed(jump(layer=None)) and "\n>" not in printed(jump(layer=None))


def test_large_amplifications_are_short():
    assert row(printed(profile(layers=[layer("a.b", amplification=12345.678)])), "a.b")[8] == "1.2e+04"
    assert not math.isnan(float(row(printed(profile(layers=[layer("a.b", amplification=0.001)])), "a.b")[8]))
