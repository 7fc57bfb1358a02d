"""Neither minimizing nor proving starves judging, and each gets what it earns."""

import random

import pytest

from fuzzcompile.fuzz.campaign.work_queue import LEAST, MOST, TimeShares


def spent(workers: int, *, case: float, minimizing: float, finds: float, shows: float, seed: int = 0) -> float:
    """The share of the workers' time that minimizing gets in a long campaign with an endless backlog.

    A case takes ``case`` seconds and brings a new finding with probability ``finds``; a minimization takes
    ``minimizing`` seconds and ends with a reproducer with probability ``shows``.
    """
    rng, shares = random.Random(seed), TimeShares()
    ends: list[tuple[float, bool]] = []
    now, took = 0.0, {False: 0.0, True: 0.0}
    while now < max(4_000.0, 20_000.0 / workers):
        while len(ends) < workers:
            running = sum(minimizes for _, minimizes in ends)
            judging = sum(case - (end - now) for end, minimizes in ends if not minimizes)
            minimizes = shares.may_minimize(running, workers, judging)
            ends.append((now + (minimizing if minimizes else case), minimizes))
            took[minimizes] += minimizing if minimizes else case
        ends.sort()
        now, minimizes = ends.pop(0)
        if minimizes:
            shares.count_minimized(minimizing, reproducer=rng.random() < shows)
        else:
            shares.count_judged(case, new_finding=rng.random() < finds, is_bug=False, proved=False)
    return took[True] / (took[True] + took[False])


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_judging_keeps_two_thirds_of_the_time_at_least_and_minimizing_a_quarter(workers):
    dry = spent(workers, case=2.0, minimizing=100.0, finds=0.0, shows=1.0)
    flood = spent(workers, case=2.0, minimizing=100.0, finds=0.5, shows=1.0)
    slack = 1.0 / workers + 0.05  # whole workers, and whole minimizations
    assert MOST - slack < dry <= MOST + slack
    assert LEAST - slack < flood <= LEAST + slack
    assert flood <= dry


def test_what_brings_more_gets_more():
    rare = spent(16, case=2.0, minimizing=100.0, finds=0.01, shows=1.0)
    often = spent(16, case=2.0, minimizing=100.0, finds=0.05, shows=1.0)
    in_vain = spent(16, case=2.0, minimizing=100.0, finds=0.01, shows=0.0)
    assert in_vain < rare and often < rare


def test_proofs_that_take_much_and_prove_little_are_cut_short():
    good, bad = TimeShares(), TimeShares()
    for _ in range(40):
        good.count_judged(30.0, new_finding=False, is_bug=True, proved=True)
        bad.count_judged(100.0, new_finding=False, is_bug=True, proved=False)
    assert TimeShares().proof == good.proof == 1.0 and bad.proof == 0.25
    for _ in range(2000):
        bad.count_judged(2.0, new_finding=False, is_bug=False, proved=False)
    assert bad.proof == 1.0, "they no longer take most of the time"
