"""Campaign time: how long campaigns ran, without the time between them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from fuzzcompile.corpus.records import StoredCampaign


def campaign_seconds(campaigns: Iterable[StoredCampaign]) -> float:
    """Seconds in which at least one campaign ran."""
    return sum((end - start).total_seconds() for start, end in _spans(campaigns))


def moment_at(campaigns: Iterable[StoredCampaign], seconds: float) -> datetime | None:
    """When campaigns had run for this many seconds in all; None if they have not."""
    left = timedelta(seconds=seconds)
    for start, end in _spans(campaigns):
        if end - start >= left:
            return start + left
        left -= end - start
    return None


def _spans(campaigns: Iterable[StoredCampaign]) -> list[tuple[datetime, datetime]]:
    """The intervals in which at least one campaign ran, in order; a killed one ends with its last heartbeat."""
    spans: list[tuple[datetime, datetime]] = []
    for start, end in sorted((run.started, run.end) for run in campaigns):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    return spans
