"""Confirmations: findings that were seen on one machine only are judged again on a second one.

A campaign judges them beside its own cases, at a small share. The unit is a `Confirmation`: a program, and the machines
on which judging it again would show nothing new. Where all workers are on one machine, it is handed out if that machine
is a new one; where a campaign reaches several machines, its executor does not place the task on those in ``not_on``.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.campaign.leftovers import drawn_of
from fuzzcompile.casefiles import defines_make
from fuzzcompile.corpus import Finding, FindingSummary, Store

ORIGIN = "confirmation"
# Seconds between two queries for waiting findings: other machines find and confirm some meanwhile.
_LOOK_EVERY = 300.0
# One of so many cases that a campaign judges is a confirmation.
_SHARE = 50


@dataclass(frozen=True)
class Confirmation:
    """A program to judge on a machine that has not tried it; ``finding`` is the public id of the finding it shows."""

    finding: str
    case: Drawn
    not_on: frozenset[str]


class Confirming:
    """Hands out the confirmations that wait in a corpus, at a small share of the cases.

    Args:
        store: the open corpus.
        reach: returns the environments in which the campaign's cases are judged now, one for each machine.
        now: a clock, in seconds.
    """

    def __init__(
        self,
        store: Store,
        reach: Callable[[], Sequence[Mapping[str, object]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._reach, self._now = store, reach, now
        self._waiting: deque[FindingSummary] = deque()
        self._begun: set[str] = set()
        self._looked: float | None = None

    def next(self, judged: int) -> Confirmation | None:
        """Return the next confirmation if one is due after so many cases of the campaign's own."""
        if judged < len(self._begun) * _SHARE:
            return None
        if self._looked is None or (not self._waiting and self._now() - self._looked > _LOOK_EVERY):
            self._looked = self._now()
            found = [f for f in waiting(self._store, self._reach()) if f.signature not in self._begun]
            random.shuffle(found)  # a hundred machines would otherwise all begin with the same one
            self._waiting.extend(found)
        while self._waiting:
            finding = self._store.finding(self._waiting.popleft().id)
            self._begun.add(finding.signature)
            # Another campaign may have confirmed it meanwhile, or an import may have added an untrusted program.
            if waits(finding, self._reach()):
                return confirmation_of(self._store, finding, self._reach())
        return None


def waiting(store: Store, reach: Sequence[Mapping[str, object]]) -> list[FindingSummary]:
    """Return the open findings, worst first, for which judging in one of these environments would show something new.

    Findings that were imported from another corpus and are not trusted are left out.
    """
    return [finding for finding in store.summaries("open") if waits(finding, reach)]


def waits(finding: FindingSummary, reach: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a finding's program may be judged in one of these environments, and would show something new."""
    return finding.trusted and any(map(finding.machines.waits_for, reach))


def confirmation_of(store: Store, finding: Finding, reach: Sequence[Mapping[str, object]] = ()) -> Confirmation:
    """Return the best confirmed reproducer of a finding as a case, or its original case where no reproducer is one.

    Machines that have tried it in an environment like one of ``reach`` are excluded.
    """
    best = store.best_reproducer(finding.id)
    if best is not None and best.confirmed and defines_make(best.source):
        case = Drawn(best.source, ORIGIN)
    else:
        case = drawn_of(store, finding)
    return Confirmation(finding.public_id, case, finding.machines.tried(reach))
