"""The events of a campaign as lines of a log (`fuzzcompile.reporting.event_log`)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fuzzcompile.campaign.events import (
    CaseJudged,
    Event,
    FindingFound,
    FindingReduced,
    FindingsMerged,
    Finished,
    Started,
    Tally,
    Tick,
    Trouble,
)
from fuzzcompile.cluster.changes import SchedulerBack, SchedulerLost, WorkerJoined, WorkerLost, WorkerRefused
from fuzzcompile.reporting.event_log import EventLog

# Counters change with every case, which has a line of its own.
_TICK_SECONDS = 10.0


class CampaignLog:
    """Writes each event when it happens; ticks, which come twice a second, only every ten seconds."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._last = 0.0

    def handle(self, event: Event) -> None:
        """Write an event."""
        if isinstance(event, Tick):
            if time.monotonic() - self._last < _TICK_SECONDS:
                return
            self._last = time.monotonic()
        self._log.write(*entry_of(event))


def entry_of(event: Event) -> tuple[str, Mapping[str, object]]:
    """Return the name of an event and its fields."""
    match event:
        case Started():
            return "campaign_started", {**vars(event), "budget": str(event.budget)}
        case CaseJudged():
            return "case_judged", {**vars(event), "seconds": round(event.seconds, 3)}
        case FindingFound():
            return "finding_found", vars(event)
        case FindingReduced():
            small = event.minimized
            reduced = {"lines_before": small.lines_before, "lines": small.lines_after, "confirmed": small.confirmed}
            spent = {"tests": small.tests, "seconds": round(small.seconds, 1)}
            return "finding_reduced", {"finding": event.finding, **reduced, **spent}
        case FindingsMerged():
            return "findings_merged", {"finding": event.finding, "merged": list(event.merged)}
        case Trouble():
            return "trouble", vars(event)
        case WorkerJoined():
            return "worker_joined", vars(event)
        case WorkerLost():
            return "worker_lost", vars(event)
        case WorkerRefused():
            return "worker_refused", vars(event)
        case SchedulerLost():
            return "scheduler_lost", vars(event)
        case SchedulerBack():
            return "scheduler_back", vars(event)
        case Tick():
            cluster = {} if event.cluster is None else {"cluster": vars(event.cluster)}
            return "progress", {**_counters(event.tally), **cluster}
        case Finished():
            return "campaign_finished", event.to_json()


def _counters(tally: Tally) -> dict[str, object]:
    return {**vars(tally), "verdicts": dict(tally.verdicts), "seconds": round(tally.seconds, 1)}
