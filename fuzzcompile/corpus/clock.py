"""Campaign time: what the clocks of all campaigns under one torch have run, without the time between them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from fuzzcompile.corpus.records import StoredCampaign


def campaign_seconds(campaigns: Iterable[StoredCampaign]) -> float:
    """Seconds in which a campaign ran; where several ran at once, the time counts once."""
    return sum((end - start).total_seconds() for start, end in _spans(campaigns))


def moment_at(campaigns: Iterable[StoredCampaign], seconds: float) -> datetime | None:
    """When campaigns had run for so many seconds; None where they have not yet."""
    left = timedelta(seconds=seconds)
    for start, end in _spans(campaigns):
        if end - start >= left:
            return start + left
        left -= end - start
    return None


def _spans(campaigns: Iterable[StoredCampaign]) -> list[tuple[datetime, datetime]]:
    """The times in which at least one campaign ran, in their order; a killed one until it was last heard of."""
    spans: list[tuple[datetime, datetime]] = []
    for start, end in sorted((one.started, one.finished or one.last_heard) for one in campaigns):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    return spans
