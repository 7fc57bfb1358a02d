"""Near misses: off means off, on reaches each of them, and the names tell the truth."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzzcompile.corpus.queries import REPORTS
from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile, list_names
from fuzzcompile.fuzz.generation.spec import NEAR_MISSES, NearMiss

NAMES = [operator.name for operator in NEAR_MISSES]
OF_THE_SHAPE = {"batch_one", "sequence_is_heads", "sequence_is_head_dim"}


def test_none_is_drawn_when_they_are_off() -> None:
    for index in range(300):
        assert draw_case_at(0, index, Profile(near_misses=False)).spec.near_misses == ()


@pytest.mark.slow
def test_each_is_drawn_when_they_are_on(many: list[GeneratedCase]) -> None:
    seen = Counter(name for case in many for name in case.spec.near_misses)
    assert set(seen) == set(NAMES)


def test_near_misses_change_many_cases_and_leave_many(many: list[GeneratedCase]) -> None:
    marks = [set(case.spec.near_misses) for case in many if case.spec.attends and not case.spec.plain]
    assert 0.3 * len(marks) <= sum(bool(mark - OF_THE_SHAPE) for mark in marks) <= 0.9 * len(marks)


def test_the_form_of_a_public_report_is_drawn_no_more_often_than_others() -> None:
    premises = [operator for operator in NEAR_MISSES if operator.percent == NearMiss.percent]
    forms = {operator.name for operator in NEAR_MISSES if operator.name in REPORTS}
    assert forms == {"key_permuted", "softmax_axis", "tensor_scale"}
    assert forms < {operator.name for operator in premises}
    assert len(premises) >= 3 * len(forms)


def test_no_near_miss_hides_every_key_from_a_line_of_another_axis(many: list[GeneratedCase]) -> None:
    for case in many:
        attention = case.spec.attention
        if attention.mask is not None and attention.softmax_axis != -1:
            assert not attention.mask.hides or attention.mask.use == "add"
            assert attention.mask.kind in ("bias", "alibi") or attention.mask.dtype == "bool"


def test_names_are_registered_once_with_what_they_do() -> None:
    known = list_names()
    assert len({name.name for name in known}) == len(known)
    assert all(name.summary.strip() for name in known)
    assert all(name.weight > 0 for name in known)
