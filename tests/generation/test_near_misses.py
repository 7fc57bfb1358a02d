"""Near misses: off means off, on reaches each of them, and the names tell the truth."""

from __future__ import annotations

from collections import Counter

from fuzzcompile.generation import Profile, case_at
from fuzzcompile.generation.near_misses import NEAR_MISSES

NAMES = [operator.name for operator in NEAR_MISSES]
OF_THE_MATHS = {"softmax_axis", "key_permuted"}
OF_THE_SHAPE = {"batch_one", "sequence_is_heads", "sequence_is_head_dim"}


def test_none_is_drawn_when_they_are_off() -> None:
    for index in range(300):
        assert case_at(0, index, Profile(near_misses=False)).spec.near_misses == ()


def test_each_is_drawn_when_they_are_on() -> None:
    seen = Counter(name for index in range(600) for name in case_at(0, index, Profile()).spec.near_misses)
    assert set(seen) == set(NAMES)


def test_a_hundred_cases_meet_those_that_break_compilers() -> None:
    specs = [case_at(0, index, Profile()).spec for index in range(100)]
    marks = [set(spec.near_misses) for spec in specs]
    assert sum(bool(mark & OF_THE_MATHS) for mark in marks) >= 10
    assert 30 <= sum(bool(mark - OF_THE_SHAPE) for mark in marks) <= 60


def test_no_near_miss_hides_every_key_from_a_query() -> None:
    for index in range(600):
        attention = case_at(3, index, Profile()).spec.attention
        if attention.mask is not None and attention.softmax_axis != -1:
            assert not attention.mask.causal
            assert attention.mask.dtype != "bool" or attention.mask.use == "add"
