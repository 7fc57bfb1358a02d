"""The part of a corpus that coverage counts: all of it, or the first minutes of campaign time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from fuzzcompile.corpus import Counters, Store, StoredCampaign, campaign_seconds, moment_at


@dataclass(frozen=True)
class Window:
    """What was counted: campaigns under one torch, and what they judged.

    Attributes:
        within: seconds of campaign time that were asked for; None for all.
        ran: seconds of campaign time that were counted.
        until: the moment after which nothing counts; None for all.
        campaigns: the campaigns that started before then.
        counters: what they judged.
    """

    within: float | None
    ran: float
    until: datetime | None
    campaigns: tuple[StoredCampaign, ...]
    counters: Counters

    def to_json(self) -> dict[str, object]:
        """As plain JSON; times in seconds."""
        return {"within": self.within, "ran": self.ran, "cases": self.counters.cases, "runs": self.counters.runs}


def window_of(store: Store, torch_version: str, within: float | None) -> Window:
    """The first ``within`` seconds of the campaigns under that torch, or as much as they ran."""
    campaigns = [campaign for campaign in store.campaigns() if campaign.environment.get("torch") == torch_version]
    until = None
    if within is not None:
        until = moment_at(campaigns, within) or datetime.now(UTC)
        campaigns = [campaign for campaign in campaigns if campaign.started <= until]
    ran = campaign_seconds(campaigns)
    counters = store.counters(torch_version=torch_version, until=until)
    return Window(within, ran if within is None else min(ran, within), until, tuple(campaigns), counters)
