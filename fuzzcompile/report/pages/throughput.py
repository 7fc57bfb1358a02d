"""How fast campaigns judged cases: a bar chart over each campaign's own time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fuzzcompile.corpus.overview import Judging
from fuzzcompile.corpus.records import StoredCampaign, compiler_of

_BARS = 60
_LEAST_SECONDS = 5.0  # of time that a bar stands for: less would show single cases


@dataclass(frozen=True)
class Pace:
    """A campaign and its cases.

    Attributes:
        campaign: what the corpus stores of it.
        cases: how many it judged.
        screened: how many of these without generated code.
        seconds: from its start to its end, its last heartbeat or its last case.
        bars: the chart; None without cases.
        top: cases a minute at the upper end of the chart.
        width: seconds that a bar stands for.
    """

    campaign: StoredCampaign
    cases: int
    screened: int
    seconds: float
    bars: Markup | None
    top: float
    width: float

    @property
    def per_minute(self) -> float:
        """Cases a minute, over the whole campaign."""
        return 60 * self.cases / max(self.seconds, 1e-9)

    @property
    def compiler(self) -> str:
        """The torch, and the target if there was one."""
        return compiler_of(self.campaign.environment)

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        return _ENDED.get(self.campaign.ended or "", self.campaign.ended or "killed, or running still")


_ENDED = {
    "budget": "its time was up",
    "max-findings": "it had its findings",
    "exhausted": "there were no more cases",
    "failed": "it failed",
    "interrupted": "it was interrupted",
}


def paces(campaigns: Sequence[StoredCampaign], judgings: Sequence[Judging]) -> list[Pace]:
    """The campaigns with their cases, the latest first."""
    by_campaign = defaultdict[int, list[Judging]](list)
    for judging in judgings:
        by_campaign[judging.campaign_id].append(judging)
    return [_pace(campaign, by_campaign[campaign.id]) for campaign in reversed(campaigns)]


def _pace(campaign: StoredCampaign, judgings: Sequence[Judging]) -> Pace:
    ages = [(judging.moment - campaign.started).total_seconds() for judging in judgings]
    seconds = max([(campaign.end - campaign.started).total_seconds(), *ages, 1.0])
    width = max(seconds / _BARS, min(_LEAST_SECONDS, seconds))
    screened, full = dict[int, int](), dict[int, int]()
    for age, judging in zip(ages, judgings, strict=True):
        counts = screened if judging.screened else full
        place = max(0, min(int(age / width), int(seconds / width)))
        counts[place] = counts.get(place, 0) + 1
    heights = {place: screened.get(place, 0) + full.get(place, 0) for place in {*screened, *full}}
    most = max(heights.values(), default=0)
    number = sum(judging.screened for judging in judgings)
    bars = _bars(full, heights, most, seconds / width) if most else None
    return Pace(campaign, len(judgings), number, seconds, bars, 60 * most / width, width)


def _bars(full: dict[int, int], heights: dict[int, int], most: int, places: float) -> Markup:
    """Bars of full compiles, with those of screens on top of them; all is scaled to 100 by 100."""
    step = 100 / max(places, 1)
    return Markup(
        '<svg class="pace" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="screened" d="{}"/><path class="full" d="{}"/></svg>'
    ).format(_path(heights, most, step), _path(full, most, step))


def _path(heights: dict[int, int], most: int, step: float) -> str:
    return "".join(
        f"M{place * step:.2f} 100v-{100 * height / most:.1f}h{0.86 * step:.2f}V100z"
        for place, height in sorted(heights.items())
    )
