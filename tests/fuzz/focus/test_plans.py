"""What a focus aims at in the installed torch. Nothing is compiled."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch._inductor.fx_passes import mkldnn_fusion, post_grad

from fuzzcompile.fuzz.focus.focus_worker import find_focus_plan
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.focus_plan import FocusPlan, FocusQuestion, Span

ROOT = Path(torch.__file__).parent.parent
NEEDS_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the reasons asked for are those of the CPU")


def aimed(*names: str, spans: tuple[Span, ...] = ()) -> FocusPlan:
    return find_focus_plan(FocusQuestion(names, spans))


def span_of(function: object, offset: int = 0) -> Span:
    """The lines of a function of torch's, or one of them."""
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getsourcefile(function)).relative_to(ROOT).as_posix()
    return Span(file, first + offset, first + (offset or len(lines) - 1))


def test_a_pass_that_is_off_is_switched_on_behind_the_normalisation_it_expects():
    table, pattern = aimed("merge_splits_pass").aims
    assert (table.label, pattern.label) == ("merge_splits_pass", "merge_splits")
    assert list(pattern.settings["pre_grad_fusion_options"]) == ["normalization_pass", "merge_splits_pass"]
    assert ("pre_grad", "merge_splits") in table.rules
    assert ("torch.functional.split",) in pattern.operators


def test_an_operator_is_aimed_at_as_decomposition_and_lowering():
    (aim,) = aimed("aten.cat").aims
    assert (aim.label, aim.kind, aim.full_share) == ("aten.cat.default", "operator", 0.9)
    assert {stage for stage, _ in aim.rules} == {"decomposition", "lowering"}


@NEEDS_CPU
def test_what_no_setting_makes_fire_is_refused_with_its_reason_unless_something_else_is_aimed_at():
    with pytest.raises(UsageError, match="needs a GPU"):
        aimed("prepare_softmax_pattern")
    plan = aimed("prepare_softmax_pattern", "addmm")
    assert [aim.label for aim in plan.reachable] == ["addmm"]


def test_lines_aim_at_the_rules_whose_code_or_helpers_they_are():
    check = next(code for name, code in vars(post_grad).items() if name == "should_prefer_unfused_addmm")
    plan = aimed(
        spans=(span_of(check), span_of(mkldnn_fusion._conv_call), Span("torch/_inductor/codegen/cpp.py", 100, 200))
    )
    labels = {aim.label for aim in plan.aims}
    assert {"addmm", "unfuse_bias_add_to_pointwise"} <= labels, "a check that one rule has and another calls"
    assert "_register_unary_fusion_lowering" in labels, "a part of patterns is called where they are registered"
    assert "torch/_inductor/codegen/cpp.py:100-200" in labels, "lines of no rule are aimed at themselves"


def test_streams_of_different_focuses_have_different_names():
    assert aimed("addmm").name != aimed("merge_splits").name
    assert aimed("addmm").name == aimed("addmm").name
