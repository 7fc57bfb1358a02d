"""When a failure is a regression."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.replay.replay_history import is_failing, is_regression


def replay(torch: str, status: str, *runs: str) -> Replay:
    return Replay("0" * 64, torch, None, status, runs or (status,) * 3, "", 1.0)


def finding(status: str = "open", *found_on: str) -> SimpleNamespace:
    return SimpleNamespace(status=status, torch_versions=found_on or ("2.13.0+cpu",))


@pytest.mark.parametrize(
    ("earlier", "now", "back"),
    [
        ([], ("2.13.0", "failing"), False),
        ([("2.13.0", "fixed")], ("2.13.0", "failing"), True),
        ([("2.13.0", "fixed")], ("2.13.0", "fixed"), False),
        ([("2.13.0", "failing"), ("2.13.0+cpu", "fixed")], ("2.13.0", "fails differently"), True),
        ([("2.13.0", "fixed"), ("2.13.0", "failing")], ("2.13.0", "failing"), False),
        # Fixed on an older version, after it was found there or before.
        ([("2.13.0", "failing"), ("2.15.0", "fixed")], ("2.16.0.dev20261101", "failing"), True),
        ([("2.15.0", "fixed"), ("2.16.0.dev20261101", "errored")], ("2.16.0.dev20261102", "failing"), True),
        ([("2.15.0", "fixed")], ("2.13.0", "failing"), False),
        # A bug that is new in a version was never fixed before it.
        ([("2.11.0", "fixed")], ("2.13.0", "failing"), False),
        ([("2.10.0", "failing"), ("2.11.0", "fixed")], ("2.13.0", "failing"), True),
    ],
)
def test_what_was_fixed_and_fails_again_is_a_regression(earlier, now, back):
    assert is_regression(finding(), replay(*now), [replay(*past) for past in earlier]) is back


def test_a_mark_counts_unless_the_fix_is_in_a_later_version():
    failing = replay("2.13.0", "failing")
    assert is_regression(finding("fixed"), failing, [])
    assert not is_regression(finding("fixed"), failing, [replay("2.15.0", "fixed")])
    assert not is_regression(finding("known"), failing, [])


def test_a_flaky_replay_fails_if_any_run_does():
    assert is_failing(replay("2.13.0", "flaky", "fixed", "failing", "fixed"))
    assert not is_failing(replay("2.13.0", "flaky", "fixed", "errored", "fixed"))
