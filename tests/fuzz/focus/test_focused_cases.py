"""What is drawn for a focus, under which settings, and what is counted. Nothing is compiled."""

from __future__ import annotations

import ast

import pytest

from fuzzcompile.fuzz.campaign.case_sources import DrawnCase
from fuzzcompile.fuzz.campaign.focus_steering import BLOCK, FocusSource, FocusSteering, add_settings
from fuzzcompile.fuzz.campaign.steering import PlaceOutcome
from fuzzcompile.fuzz.focus.focus_request import FOCUS, FocusTally
from fuzzcompile.model.compiler_toggles import solve_switches
from fuzzcompile.model.focus_plan import FocusAim, FocusObservation, FocusPlan, Span
from fuzzcompile.programs.edits.pattern_program import Operand, PatternProgram

SETTINGS = {"pre_grad_fusion_options": {"normalization_pass": {}, "merge_splits_pass": {}}}
AIM = FocusAim(
    "merge_splits", "pattern", "pre_grad", (("pre_grad", "merge_splits"),), SETTINGS, operators=(("a", "b"), ("c",))
)
X = Operand("x", (4, 4))
SPLIT = ("y = torch.split(x, 2)",)
PROGRAM = PatternProgram("pre_grad", "merge_splits", None, "pattern", (X,), SPLIT, ("y",), {}, fires=True)
LINES = FocusAim("ir.py:1-9", "lines", "", spans=(Span("ir.py", 1, 9),))


def settings_in(source: str, name: str) -> object:
    (node,) = (node for node in ast.parse(source).body if isinstance(node, ast.Assign) and node.targets[0].id == name)
    return ast.literal_eval(node.value)


@pytest.mark.parametrize(
    ("before", "config"),
    [
        ("", SETTINGS),
        ('CONFIG = {"inductor": {"freezing": True}}\n', {"freezing": True, **SETTINGS}),
        ('CONFIG = {"inductor": {"pre_grad_fusion_options": {"batch_relu": {}}}}\n',
         {"pre_grad_fusion_options": {**SETTINGS["pre_grad_fusion_options"], "batch_relu": {}}}),
    ],
)  # fmt: skip
def test_settings_are_put_beside_those_of_a_case(before, config):
    source = add_settings(f"import torch\n{before}\ndef make():\n    return torch.relu, ()\n", SETTINGS)
    assert settings_in(source, "CONFIG") == {"inductor": config}
    assert add_settings(source, SETTINGS) == source


def test_an_option_of_the_case_keeps_its_place():
    source = add_settings('import torch\nOPTIONS = {"pre_grad_fusion_options": {"batch_relu": {}}}\n', SETTINGS)
    assert "batch_relu" in settings_in(source, "OPTIONS")["pre_grad_fusion_options"]
    assert "merge_splits_pass" in settings_in(source, "OPTIONS")["pre_grad_fusion_options"]
    assert "CONFIG" not in source


@pytest.mark.parametrize(
    ("condition", "settings"),
    [
        ("config.pattern_matcher and config.b2b_gemm_pass", {"b2b_gemm_pass": True}),
        ("not config.fallback_random", {"fallback_random": False}),
        ("config.b2b_gemm_pass or config.pattern_matcher", {}),
        ("is_inference and config.b2b_gemm_pass", {"b2b_gemm_pass": True}),
        ("'other' in config.options", {"options": {"other": {}}}),
        ("config.mode == 'all'", {"mode": "all"}),
        ("config.unknown and f(x)", {}),
    ],
)
def test_a_condition_says_what_has_to_be_set(condition, settings):
    present = {"pattern_matcher": True, "b2b_gemm_pass": False, "fallback_random": True, "options": {}, "mode": "none"}

    def value(entry: str) -> object:
        if entry not in present:
            raise AttributeError(entry)
        return present[entry]

    assert solve_switches(condition, value) == settings


def steering(*aims: FocusAim, programs: tuple[PatternProgram, ...] = (PROGRAM,)) -> FocusSteering:
    return FocusSteering(FocusSource(FocusPlan(aims), programs=programs), seed=0)


def outcome(drawn: DrawnCase, *items: tuple[str, str, str]) -> PlaceOutcome:
    return PlaceOutcome(drawn, frozenset(items), screened=True)


def test_the_first_case_of_an_aim_is_its_program_under_its_settings():
    case, _ = steering(AIM).at(0)
    assert "torch.split(x, 2)" in case.source
    assert settings_in(case.source, "CONFIG") == {"inductor": SETTINGS}
    assert "focus:merge_splits" in case.features


def test_the_way_of_drawing_that_makes_an_aim_match_is_drawn_more_often():
    steered = steering(AIM)
    arms: list[str] = []
    for index in range(60):
        case, _ = steered.at(index)
        arms.append(next(name for name in case.features if name.startswith("drawn as:")))
        fired = arms[-1] == "drawn as:grammar"
        steered.learn(index, outcome(case, *([("pre_grad", "merge_splits", "fired")] if fired else [])))
    late = arms[30:]
    assert late.count("drawn as:grammar") > len(late) / 3 > 60 / 3 * arms[: 2 * BLOCK].count("drawn as:grammar") / 60
    assert not steered.is_seeking


def test_an_aim_that_never_matched_is_drawn_for_more_often():
    other = FocusAim("other", "pattern", "pre_grad", (("pre_grad", "other"),))
    steered, labels = steering(AIM, other), []
    for index in range(80):
        case, _ = steered.at(index)
        labels.append("merge_splits" if "focus:merge_splits" in case.features else "other")
        steered.learn(index, outcome(case, *[("pre_grad", "merge_splits", "fired")] * (labels[-1] == "merge_splits")))
    assert labels.count("other") > 2 * labels.count("merge_splits")
    assert set(labels[:2]) == {"merge_splits", "other"}, "each is tried once before any again"


def test_lines_are_met_where_one_of_them_ran():
    steered = steering(LINES, programs=())
    case, _ = steered.at(0)
    steered.learn(0, outcome(case, (FOCUS, "ir.py:1-9", "fired")))
    steered.at(2 * BLOCK)
    assert not steered.is_seeking


def test_counts_say_what_fired_what_refused_and_what_is_missing():
    tally = FocusTally(FocusPlan((AIM, LINES)))
    tally.count([], FocusObservation(operators=frozenset({"b"})))
    assert tally.to_json()["merge_splits"]["missing"] == "no graph called c"
    assert tally.to_json()["ir.py:1-9"] | {"fired": 0, "refused": 0, "matched": 0} == tally.to_json()["ir.py:1-9"]
    why = "same_dims: a != b (x.py:3)"
    tally.count(
        [("pre_grad", "merge_splits", "fired", 2), ("pre_grad", "merge_splits", "refused", 1), ("p", "x", "fired", 9)],
        FocusObservation(
            checks={("pre_grad", "merge_splits", why): 1},
            spans=frozenset(LINES.spans),
            lines=frozenset({("ir.py", 3), ("ir.py", 40)}),
        ),
    )
    entry = tally.to_json()["merge_splits"]
    assert (entry["fired"], entry["refused"], entry["matched"], entry["cases"]) == (2, 1, 3, 1)
    assert entry["checks"] == {why: 1}
    assert tally.to_json()["ir.py:1-9"]["lines"] == 1
    assert any("refused by same_dims" in line for line in tally.format_lines())
