"""Findings that were seen on one machine wait for a second one: which these are here, and the program to judge.

A campaign judges them beside its own cases, at a small share. The unit is a `Confirmation`: a program, and the machines
on which it would tell nothing new. Where workers are on one machine, that is the campaign's own; an executor over
several machines may take ``not_on`` as where not to place the task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuzzcompile.campaign.drawing import Drawn
from fuzzcompile.campaign.leftovers import drawn_of
from fuzzcompile.casefiles import defines_make
from fuzzcompile.corpus import Finding, FindingSummary, Store

ORIGIN = "confirmation"
# Seconds between two looks at which findings wait: other machines find and confirm some meanwhile.
_LOOK_EVERY = 300.0
# One of so many cases that a campaign judges is a confirmation.
_SHARE = 50


@dataclass(frozen=True)
class Confirmation:
    """A program to be judged on a machine that has not tried it; ``finding`` is the public id of what it shows."""

    finding: str
    case: Drawn
    not_on: frozenset[str]


class Confirming:
    """Hands out the confirmations that wait in a corpus, one now and then.

    Args:
        store: the open corpus.
        environment: in which the campaign's cases are judged.
        now: a clock, in seconds.
    """

    def __init__(
        self, store: Store, environment: Mapping[str, object], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._environment, self._now = store, environment, now
        self._waiting: deque[FindingSummary] = deque()
        self._begun: set[str] = set()
        self._looked: float | None = None

    def next(self, judged: int) -> Confirmation | None:
        """The next confirmation if it is time for one, after so many cases of the campaign's own."""
        if judged < len(self._begun) * _SHARE:
            return None
        if self._looked is None or (not self._waiting and self._now() - self._looked > _LOOK_EVERY):
            self._looked = self._now()
            self._waiting.extend(
                f for f in waiting_here(self._store, self._environment) if f.signature not in self._begun
            )
        if not self._waiting:
            return None
        summary = self._waiting.popleft()
        self._begun.add(summary.signature)
        return confirmation_of(self._store, self._store.finding(summary.id))


def waiting_here(store: Store, environment: Mapping[str, object]) -> list[FindingSummary]:
    """The open findings, the worst first, of which this machine can tell whether a second one shows them.

    Those of another corpus that no one here trusts are left out.
    """
    return [f for f in store.summaries("open") if f.trusted and f.machines.waits_for(environment)]


def confirmation_of(store: Store, finding: Finding) -> Confirmation:
    """The best reproducer of a finding as a case, or its case where there is none, or none that is a case."""
    best = store.best_reproducer(finding.id)
    if best is not None and best.confirmed and defines_make(best.source):
        case = Drawn(best.source, ORIGIN)
    else:
        case = drawn_of(store, finding)
    return Confirmation(finding.public_id, case, finding.machines.tried)
