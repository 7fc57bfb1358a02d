"""The answer for people: what it says and that it fits."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from triage_reports import CULPRIT, output, report

from fuzzcompile.report.verdict_text import advice, print_report, report_console


def printed(of: dict[str, Any], **options: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(console, of, **options)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_figure_of_an_output_is_in_the_table():
    text = printed(report("rounding", output(torch_same=None, within_default_tolerance=False)))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  out0 ")]
    assert row == [
        "out0",
        "1.0e-07",
        "3.0e-08",
        "1.5",
        "2.0e-07",
        "5.0e-08",
        "3",
        "2",
        "4.0e-07",
        "fail",
        "-",
        "1.000000",
    ]


def test_where_it_differs_is_said_with_the_values_of_all_runs():
    text = printed(report("miscompile", output(), output("out1", where=[], at={"eager": 3, "compiled": None})))
    assert "out0[0, 3]: eager 0.5, compiled 0.25, float64 0.5" in text
    assert "out1: eager 3, compiled non-finite" in text


def test_numbers_that_json_cannot_hold_have_their_names():
    broken = output(
        max_abs_error_compiled=None, non_finite="inf", at={"eager": 1.0, "compiled": None, "non_finite": "nan"}
    )
    text = printed(report("nonfinite", broken))
    assert " inf " in text and "compiled nan" in text and "None" not in text
    at = {"eager": None, "compiled": None, "float64": None, "non_finite": "-inf", "non_finite_compiled": "nan"}
    text = printed(report("nonfinite", output(max_abs_error_compiled=None, non_finite="nan", at=at)))
    assert "eager -inf, compiled nan, float64 -inf" in text


def test_a_value_of_python_has_no_row_of_errors():
    text = printed(report("miscompile", output(finding="integer", detail="eager int 10, compiled int 14", where=None)))
    assert "out0: eager int 10, compiled int 14" in text
    assert "noise" not in text


def test_metadata_has_no_numbers_in_the_table():
    text = printed(report("metadata", output(finding="stride", detail="eager (4, 1), compiled (1, 2)", where=None)))
    assert "out0: stride: eager (4, 1), compiled (1, 2)" in text
    assert "1.0e-07" not in text and "noise" not in text


@pytest.mark.parametrize(
    ("verdict", "side", "trusts", "means"),
    [
        ("miscompile", "compiled", "trust eager mode", "compiled computes wrong values"),
        ("wrong_gradient", "compiled", "trust eager mode", "compiled computes wrong gradients"),
        ("eager_wrong", "eager", "trust the compiled program", "eager mode computes wrong values"),
        ("miscompile", "both", "trust neither side:", "both are wrong"),
        ("wrong_gradient", "undecided", "undecided, and confidence is low", "it is not known which are right"),
    ],
)
def test_one_sentence_says_which_side_to_trust(verdict, side, trusts, means):
    first, *others = printed(report(verdict, output(), wrong=side)).splitlines()
    assert means in first
    assert trusts in next(line for line in others if line.startswith("  trust "))


def test_the_answer_fits_and_is_plain():
    name = "gradient of parameter model.encoder.layers.11.self_attention.output_projection.weight"
    wide = output(
        name, error_ratio=1.2e12, noise_floor=None, max_ulps_eager=1e12, max_ulps_compiled=None, non_finite="-inf"
    )
    text = printed(report("rounding", wide, *(output(f"out{i}") for i in range(20))))
    table = text.splitlines()[1 : text.splitlines().index("  and 18 more outputs that differ (--json has all)")]
    assert len(table) > 4 and "gradient of parameter" in table[2] and max(map(len, table)) <= 120
    assert "\x1b" not in text


def test_wrong_outputs_come_first_and_rounding_beside_them_is_left_out():
    wrong = [output(f"wrong{n}", finding="far") for n in range(4)]
    text = printed(report("miscompile", output("near0", finding="close"), *wrong, output("near1", finding="close")))
    assert all(f"wrong{n}" in text for n in range(4)) and "near" not in text
    assert "and 2 more outputs that differ (--json has all)" in text


def test_what_bears_on_the_verdict_is_said():
    evidence = {
        "graphs": 3,
        "graph_breaks": ["print() at\n model.py:3"],
        "randomness": "same stream",
        "survives_float64": False,
        "warnings": ["eager alone: overflow"],
        "notes": ["also compiled: g"],
        "eager_deterministic": False,
    }
    text = printed(report("unstable", output(), evidence=evidence))
    said = (
        "graphs: 3; broken by print() at model.py:3",
        "random numbers: same stream",
        "in float64 the difference is gone",
        "eager alone: overflow",
        "note: also compiled: g",
        "eager is not deterministic",
    )
    assert [part for part in said if part not in text] == []
    assert "graphs" not in printed(report("rounding", output(), evidence={"graphs": 1, "graph_breaks": []}))


def test_rounding_names_the_rewrites_that_changed_the_bits():
    changed = [CULPRIT, CULPRIT, {**CULPRIT, "rewrite": "addmm", "stage": "post_grad"}]
    text = printed(report("rounding", output(), changed_bits=changed))
    assert "changed any bit: _sfdp_pattern_28_inference (joint_graph), addmm (post_grad)" in text


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (report("equal"), "nothing: the bits are the same"),
        (report("rounding", output(error_ratio=0.5)), "compiled is no farther from float64 than eager (ratio 0.5)"),
        (report("rounding", output(error_ratio=3.0)), "3 times as far"),
        (report("rounding", output(within_default_tolerance=False)), "atol=3e-07"),
        (report("precision_casts"), "emulate_precision_casts = True"),
        (report("invalid"), "fix the program"),
        (report("unstable"), "better conditioned"),
        (report("miscompile"), "`fuzzcompile minimize m.py`"),
        (report("miscompile", confidence="low"), "confidence is low"),
        (report("miscompile", workaround={"how": "config.x = 1"}), "until it is fixed, use config.x = 1"),
        (report("timeout", confidence="low"), "larger --timeout"),
    ],
)  # fmt: skip
def test_the_advice_is_concrete(of, says):
    assert says in advice(of, "m.py")


def test_a_known_bug_is_nothing_new():
    text = printed(report("miscompile", output()), known=True)
    assert "miscompile (BUG, known" in text and "what to do: nothing new" in text


def test_another_baseline_than_eager_is_named():
    assert "compared with float64" in printed(report("rounding", evidence={"against": "float64"}))


def test_the_console_is_of_a_fixed_width_where_it_is_no_terminal():
    assert report_console().width == 120


def test_where_nothing_was_compiled_no_compiled_program_is_to_be_trusted():
    text = printed(report("eager_wrong", output(), wrong="eager", evidence={"path": "eager"}))
    assert "a second reference contradicts it" in text and "trust" not in text and "compiled program" not in text
