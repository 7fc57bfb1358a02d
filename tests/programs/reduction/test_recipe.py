"""Shrinking by choices: to the plainest program that still holds, within its budgets, without noise."""

from __future__ import annotations

import ast
import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.recipe import NotReproducedError, RecipeProgress, readability, shrink_recipe

EVERYTHING = Profile()
Predicate = Callable[[GeneratedCase], bool]


def other_axis(case: GeneratedCase) -> bool:
    return case.spec.attention.softmax_axis != -1


def misplaced_key(case: GeneratedCase) -> bool:
    """The K-permute bug as it shows in numbers: heads and tokens can be taken for each other."""
    spec = case.spec
    return spec.attention.key_permuted and spec.dims.sequence == spec.dims.heads


@functools.cache
def big_cases(predicate: Predicate, wanted: int) -> tuple[GeneratedCase, ...]:
    """The first generated cases in a block for which the predicate holds."""
    found = (case for index in count() if (case := draw_case_at(5, index, EVERYTHING)).spec.block and predicate(case))
    return tuple(next(found) for _ in range(wanted))


@pytest.mark.parametrize("predicate", [other_axis, misplaced_key])
def test_a_finding_in_a_block_becomes_one_attention_over_q_k_and_v(predicate: Predicate) -> None:
    for case in big_cases(predicate, 2):
        result = shrink_recipe(case.choices, EVERYTHING, predicate)
        assert result.finished
        assert predicate(result.best)
        assert result.best.spec.block is None
        assert result.best.spec.dtype == "float32"
        assert "def forward(self, q, k, v):" in result.best.source
        assert len([line for line in result.best.source.splitlines() if line]) <= 14


def test_the_smallest_sizes_that_still_hold_are_found() -> None:
    def needs_sizes(case: GeneratedCase) -> bool:
        return other_axis(case) and case.spec.dims.heads >= 3 and case.spec.dims.sequence >= 5

    (case,) = big_cases(needs_sizes, 1)
    dims = shrink_recipe(case.choices, EVERYTHING, needs_sizes, max_tests=200).best.spec.dims
    assert (dims.batch, dims.sequence, dims.heads, dims.head_dim) == (1, 5, 3, 2)


def test_what_the_finding_needs_is_kept() -> None:
    def needs_silu(case: GeneratedCase) -> bool:
        return "nn.SiLU()" in case.source and case.spec.dtype == "float16"

    (case,) = big_cases(needs_silu, 1)
    best = shrink_recipe(case.choices, EVERYTHING, needs_silu, max_tests=100).best
    assert best.spec.idioms[1:] == ("feed_forward_silu",)
    assert best.spec.dtype == "float16"


def test_every_candidate_is_a_program_and_none_is_tested_twice() -> None:
    tested: Counter[str] = Counter()

    def predicate(case: GeneratedCase) -> bool:
        ast.parse(case.source)
        tested[case.source] += 1
        return other_axis(case)

    (case,) = big_cases(other_axis, 1)
    result = shrink_recipe(case.choices, EVERYTHING, predicate)
    assert result.tests == len(tested)
    assert set(tested.values()) == {1}


def test_the_original_is_tested_first_and_keeps_its_choices() -> None:
    (case,) = big_cases(other_axis, 1)
    seen: list[GeneratedCase] = []

    def only_the_original(candidate: GeneratedCase) -> bool:
        seen.append(candidate)
        return candidate.source == case.source

    best = shrink_recipe(case.choices, EVERYTHING, only_the_original).best
    assert seen[0] == case
    assert best == case
    assert from_choices(best.choices, EVERYTHING) == case


def test_the_number_of_tests_is_a_bound_and_the_best_so_far_is_returned() -> None:
    (case,) = big_cases(other_axis, 1)
    for most in (1, 5, 9):
        shown: list[GeneratedCase] = []

        def predicate(candidate: GeneratedCase, shown: list[GeneratedCase] = shown) -> bool:
            if other_axis(candidate):
                shown.append(candidate)
            return other_axis(candidate)

        result = shrink_recipe(case.choices, EVERYTHING, predicate, max_tests=most)
        assert result.tests == most
        assert not result.finished
        assert result.best == min(shown, key=readability)


def test_a_deadline_ends_the_search() -> None:
    (case,) = big_cases(other_axis, 1)

    def slow(candidate: GeneratedCase) -> bool:
        time.sleep(0.1)
        return other_axis(candidate)

    start = time.monotonic()
    result = shrink_recipe(case.choices, EVERYTHING, slow, deadline=start + 0.35)
    assert not result.finished
    assert result.tests <= 4
    assert other_axis(result.best)


def test_a_case_that_does_not_hold_is_refused() -> None:
    with pytest.raises(NotReproducedError):
        shrink_recipe(draw_case_at(0, 0, EVERYTHING).choices, EVERYTHING, lambda case: False)


def test_without_a_single_test_nothing_is_claimed() -> None:
    (case,) = big_cases(other_axis, 1)
    with pytest.raises(NotReproducedError):
        shrink_recipe(case.choices, EVERYTHING, other_axis, max_tests=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_what_the_predicate_raises_comes_out_and_the_best_so_far_is_known(
    error: type[BaseException],
) -> None:
    (case,) = big_cases(other_axis, 1)
    progress: list[RecipeProgress] = []
    calls = count(1)

    def interrupted(candidate: GeneratedCase) -> bool:
        if next(calls) == 8:
            raise error
        return other_axis(candidate)

    with pytest.raises(error):
        shrink_recipe(case.choices, EVERYTHING, interrupted, on_progress=progress.append)
    assert [event.tests for event in progress] == list(range(1, 8))
    assert other_axis(progress[-1].best)
    assert readability(progress[-1].best) < readability(case)


def test_what_the_progress_handler_raises_is_no_finding() -> None:
    (case,) = big_cases(other_axis, 1)

    def broken(progress: RecipeProgress) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        shrink_recipe(case.choices, EVERYTHING, other_axis, on_progress=broken)


@pytest.mark.slow
def test_progress_says_when_the_best_changed() -> None:
    (case,) = big_cases(other_axis, 1)
    progress: list[RecipeProgress] = []
    result = shrink_recipe(case.choices, EVERYTHING, other_axis, on_progress=progress.append)
    assert progress[0].improved
    assert progress[-1].best == result.best
    improvements = [readability(event.best) for event in progress if event.improved]
    assert improvements == sorted(improvements, reverse=True)


@pytest.mark.slow
def test_it_is_silent_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (case,) = big_cases(other_axis, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shrink_recipe(case.choices, EVERYTHING, other_axis)
        shrink_recipe(case.choices, EVERYTHING, other_axis, max_tests=3)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_shrink_within_the_clean_profile_stays_within_it() -> None:
    clean = Profile(near_misses=False)
    case = next(case for index in count() if (case := draw_case_at(0, index, clean)).spec.block)
    best = shrink_recipe(case.choices, clean, lambda candidate: True).best
    assert best.spec.near_misses == ()
