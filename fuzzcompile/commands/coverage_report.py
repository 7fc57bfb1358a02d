"""A coverage table as a report in Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch

from fuzzcompile import __version__
from fuzzcompile.campaign.budget import clock
from fuzzcompile.commands.attention import AttentionCoverage
from fuzzcompile.commands.coverage import RULES, CoverageTable
from fuzzcompile.corpus import StoredCampaign
from fuzzcompile.execution.environment import describe
from fuzzcompile.reporting.coverage import coverage_page
from fuzzcompile.reporting.privacy import scrub


def report_of(table: CoverageTable, patterns: AttentionCoverage | None, missing: str | None) -> str:
    """The report: what was counted, the table by stage, SDPA patterns, what cannot be reached and why, what never was.

    Args:
        table: what was reached.
        patterns: the SDPA patterns; None to leave them out.
        missing: why they are left out, as a sentence, if they were asked for.
    """
    rules = [row for row in table.stages if row.kind in RULES]
    names = defaultdict[tuple[str, str, str], list[str]](list)
    for row in rules:
        for name, reason in row.unreachable.items():
            names[row.stage, row.kind, reason.why].append(name)
    window = table.window
    return coverage_page(
        {
            "version": __version__,
            "torch": table.torch,
            "within": None if window.within is None else clock(window.within),
            "ran": clock(window.ran),
            "counters": window.counters,
            "campaigns": [_campaign(campaign) for campaign in window.campaigns],
            "total": table.rules,
            "note": table.note,
            "stages": table.stages,
            "rules": rules,
            "attention": patterns,
            "missing": missing,
            "groups": Counter(reason.group for row in rules for reason in row.unreachable.values()).most_common(),
            "reasons": [(*place, listed) for place, listed in names.items()],
        },
        {**describe(torch.device(table.device)), "torch": table.torch},
    )


def _campaign(campaign: StoredCampaign) -> dict[str, object]:
    ran = ((campaign.finished or campaign.last_heard) - campaign.started).total_seconds()
    return {
        "command": scrub(campaign.command),
        "seed": campaign.seed,
        "started": f"{campaign.started:%Y-%m-%d %H:%M} UTC",
        "ran": clock(ran),
        "ended": campaign.ended or "not ended",
        "version": campaign.fuzzcompile_version,
    }
