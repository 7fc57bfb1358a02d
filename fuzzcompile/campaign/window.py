"""Which part of a corpus is counted: all of it, or what campaigns had judged in their first minutes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fuzzcompile.corpus import Counters, Store, StoredCampaign, campaign_seconds, moment_at


@dataclass(frozen=True)
class Window:
    """What was counted: the campaigns under one torch, their time together and what they judged.

    ``within`` seconds of campaign time were asked for (None: all), ``ran`` were there; ``until`` is the moment after
    which nothing counts, None for all.
    """

    within: float | None
    ran: float
    until: datetime | None
    campaigns: tuple[StoredCampaign, ...]
    counters: Counters

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; times in seconds."""
        return {"within": self.within, "ran": self.ran, "cases": self.counters.cases, "runs": self.counters.runs}


def window_of(store: Store, torch_version: str, within: float | None) -> Window:
    """The first ``within`` seconds of the campaigns under that torch, or all that is there of it."""
    campaigns = [one for one in store.campaigns() if one.environment.get("torch") == torch_version]
    until = None
    if within is not None:
        until = moment_at(campaigns, within) or datetime.now(UTC)
        campaigns = [one for one in campaigns if one.started <= until]
    ran = campaign_seconds(campaigns)
    counters = store.counters(torch_version=torch_version, until=until)
    return Window(within, ran if within is None else min(ran, within), until, tuple(campaigns), counters)
