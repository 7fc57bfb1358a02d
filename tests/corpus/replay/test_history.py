"""What the replays of a finding say together."""

from __future__ import annotations

from fuzzcompile.corpus.models import Replay
from fuzzcompile.corpus.replay.replay_history import History, history


def replay(torch: str, status: str, *runs: str) -> Replay:
    return Replay("0" * 64, torch, None, status, runs or (status,) * 3, "", 1.0)


def test_a_bug_that_came_and_went():
    known = history([replay("2.15.0+cu130", "fixed"), replay("2.13.0+cpu", "failing"), replay("2.11.0", "fixed")])
    statuses = {"2.11.0": "not affected", "2.13.0": "failing", "2.15.0": "fixed"}
    assert known == History(statuses, "2.13.0", "2.15.0", "2.15.0", earlier_not_tried=False)
    assert list(known.torch) == ["2.11.0", "2.13.0", "2.15.0"]


def test_versions_are_ordered_as_versions():
    known = history([replay("2.9.1", "failing"), replay("2.16.0.dev20261101", "fixed"), replay("2.10.0", "failing")])
    assert (known.affected_since, known.fixed_in, known.newest) == ("2.9.1", "2.16.0.dev20261101", "2.16.0.dev20261101")
    assert known.earlier_not_tried


def test_the_latest_replay_of_a_version_counts():
    known = history([replay("2.13.0", "failing"), replay("2.13.0+cpu", "fixed")])
    assert known == History({"2.13.0": "fixed"}, newest="2.13.0")


def test_a_bug_that_comes_back_is_not_fixed():
    known = history([replay("2.11.0", "failing"), replay("2.13.0", "fixed"), replay("2.15.0", "failing")])
    assert (known.affected_since, known.fixed_in) == ("2.11.0", None)
    assert known.torch["2.13.0"] == "fixed"


def test_what_gives_no_answer_is_neither_affected_nor_fixed():
    known = history([replay("2.11.0", "errored"), replay("2.13.0", "failing"), replay("2.15.0", "fails differently")])
    assert (known.affected_since, known.fixed_in, known.earlier_not_tried) == ("2.13.0", None, True)


def test_a_flaky_replay_is_affected_if_the_bug_showed_in_a_run():
    assert history([replay("2.13.0", "flaky", "fixed", "failing", "fixed")]).affected_since == "2.13.0"
    assert history([replay("2.13.0", "flaky", "fixed", "errored", "fixed")]).affected_since is None


def test_no_replays_say_nothing():
    assert history([]) == History({})


def test_a_torch_that_is_no_version_comes_first():
    assert list(history([replay("2.13.0", "failing"), replay("fork", "fixed")]).torch) == ["fork", "2.13.0"]
