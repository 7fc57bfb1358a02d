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
from fuzzcompile.fuzz.generation.recipes import GeneratedRecipe, readability

EVERYTHING = Profile()
Predicate = Callable[[GeneratedCase], bool]


def shrink(
    case: GeneratedCase,
    predicate: Predicate,
    *,
    profile: Profile = EVERYTHING,
    max_tests: int = 60,
    deadline: float | None = None,
    on_test: Callable[[GeneratedCase], None] = lambda best: None,
) -> GeneratedCase | None:
    recipe = GeneratedRecipe(case.choices, profile)
    return recipe.shrink(predicate, max_tests=max_tests, deadline=deadline, on_test=on_test)


def best_of(case: GeneratedCase, predicate: Predicate, **budget: int) -> GeneratedCase:
    best = shrink(case, predicate, **budget)
    assert best is not None
    return best


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


@pytest.mark.slow
@pytest.mark.parametrize("predicate", [pytest.param(other_axis, marks=pytest.mark.slow), misplaced_key])
def test_a_finding_in_a_block_becomes_one_attention_over_q_k_and_v(predicate: Predicate) -> None:
    for case in big_cases(predicate, 2):
        best = best_of(case, predicate)
        assert predicate(best)
        assert best.spec.block is None
        assert best.spec.dtype == "float32"
        assert "def forward(self, q, k, v):" in best.source
        assert len([line for line in best.source.splitlines() if line]) <= 14


@pytest.mark.slow
def test_the_smallest_sizes_that_still_hold_are_found() -> None:
    def needs_sizes(case: GeneratedCase) -> bool:
        return other_axis(case) and case.spec.dims.heads >= 3 and case.spec.dims.sequence >= 5

    (case,) = big_cases(needs_sizes, 1)
    dims = best_of(case, needs_sizes, max_tests=200).spec.dims
    assert (dims.batch, dims.sequence, dims.heads, dims.head_dim) == (1, 5, 3, 2)


@pytest.mark.slow
def test_what_the_finding_needs_is_kept() -> None:
    def needs_silu(case: GeneratedCase) -> bool:
        return "nn.SiLU()" in case.source and case.spec.dtype == "float16"

    (case,) = big_cases(needs_silu, 1)
    best = best_of(case, needs_silu, max_tests=100)
    assert best.spec.idioms[1:] == ("feed_forward_silu",)
    assert best.spec.dtype == "float16"


@pytest.mark.slow
def test_every_candidate_is_a_program_and_none_is_tested_twice() -> None:
    tested: Counter[str] = Counter()

    def predicate(case: GeneratedCase) -> bool:
        ast.parse(case.source)
        tested[case.source] += 1
        return other_axis(case)

    (case,) = big_cases(other_axis, 1)
    shrink(case, predicate)
    assert len(tested) < 60  # it ended by itself
    assert set(tested.values()) == {1}


def test_the_original_is_tested_first_and_keeps_its_choices() -> None:
    (case,) = big_cases(other_axis, 1)
    seen: list[GeneratedCase] = []

    def only_the_original(candidate: GeneratedCase) -> bool:
        seen.append(candidate)
        return candidate.source == case.source

    best = best_of(case, only_the_original)
    assert seen[0] == case
    assert best == case
    assert from_choices(best.choices, EVERYTHING) == case


def test_the_number_of_tests_is_a_bound_and_the_best_so_far_is_returned() -> None:
    (case,) = big_cases(other_axis, 1)
    for most in (1, 5, 9):
        tested: list[GeneratedCase] = []

        def predicate(candidate: GeneratedCase, tested: list[GeneratedCase] = tested) -> bool:
            tested.append(candidate)
            return other_axis(candidate)

        best = shrink(case, predicate, max_tests=most)
        assert len(tested) == most
        assert best == min(filter(other_axis, tested), key=readability)


def test_a_deadline_ends_the_search() -> None:
    (case,) = big_cases(other_axis, 1)
    tested: list[GeneratedCase] = []

    def slow(candidate: GeneratedCase) -> bool:
        tested.append(candidate)
        time.sleep(0.1)
        return other_axis(candidate)

    best = shrink(case, slow, deadline=time.monotonic() + 0.35)
    assert len(tested) <= 4
    assert best is not None and other_axis(best)


def test_a_case_that_does_not_hold_is_refused() -> None:
    assert shrink(draw_case_at(0, 0, EVERYTHING), lambda case: False) is None


def test_without_a_single_test_nothing_is_claimed() -> None:
    (case,) = big_cases(other_axis, 1)
    assert shrink(case, other_axis, max_tests=0) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_what_the_predicate_raises_comes_out_and_the_best_so_far_is_known(
    error: type[BaseException],
) -> None:
    (case,) = big_cases(other_axis, 1)
    best: list[GeneratedCase] = []
    calls = count(1)

    def interrupted(candidate: GeneratedCase) -> bool:
        if next(calls) == 8:
            raise error
        return other_axis(candidate)

    with pytest.raises(error):
        shrink(case, interrupted, on_test=best.append)
    assert len(best) == 7
    assert other_axis(best[-1])
    assert readability(best[-1]) < readability(case)


def test_what_the_progress_handler_raises_is_no_finding() -> None:
    (case,) = big_cases(other_axis, 1)

    def broken(best: GeneratedCase) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        shrink(case, other_axis, on_test=broken)


@pytest.mark.slow
def test_the_best_only_becomes_better() -> None:
    (case,) = big_cases(other_axis, 1)
    best: list[GeneratedCase] = []
    assert shrink(case, other_axis, on_test=best.append) == best[-1]
    ranks = [readability(each) for each in best]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.slow
def test_it_is_silent_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (case,) = big_cases(other_axis, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shrink(case, other_axis)
        shrink(case, other_axis, max_tests=3)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_shrink_within_the_clean_profile_stays_within_it() -> None:
    clean = Profile(near_misses=False)
    case = next(case for index in count() if (case := draw_case_at(0, index, clean)).spec.block)
    best = shrink(case, lambda candidate: True, profile=clean)
    assert best is not None
    assert best.spec.near_misses == ()
