"""Derivatives along directions, weighed."""

from __future__ import annotations

from fuzzcompile.run.differences import weigh_misses


def test_two_directions_of_three_tell_and_the_third_is_asked_for_where_two_disagree():
    assert weigh_misses(iter([0.0, 0.0])) == 0
    assert weigh_misses(iter([0.5, 0.25])) == 0.25
    assert weigh_misses(iter([0.0, 0.5, 0.25])) == 0.25, "what is wrong cancels along one"
    assert weigh_misses(iter([0.5, 0.0, 0.0])) == 0, "a kink cancels along one"
    assert weigh_misses(iter([0.5, None])) is None
