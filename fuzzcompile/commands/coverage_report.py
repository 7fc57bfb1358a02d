"""A coverage table as a report in Markdown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from fuzzcompile import __version__
from fuzzcompile.campaign.budget import clock
from fuzzcompile.campaign.window import Window
from fuzzcompile.commands.attention import AttentionCoverage
from fuzzcompile.commands.coverage import RULES, CoverageTable, Stretch
from fuzzcompile.corpus import StoredCampaign
from fuzzcompile.execution.environment import describe
from fuzzcompile.reporting.coverage import coverage_page
from fuzzcompile.reporting.privacy import scrub


def report_of(table: CoverageTable, patterns: AttentionCoverage | None, missing: str | None) -> str:
    """The report: what was counted, the table by stage, SDPA patterns, what cannot be reached and why, what never was.

    ``patterns`` are left out where they are None, with the sentence ``missing`` if there is one.
    """
    rules = [one for one in table.stretches if one.kind in RULES]
    return coverage_page(
        {
            "version": __version__,
            "torch": table.torch,
            "environment": describe(torch.device(table.device)),
            "window": _window(table.window),
            "campaigns": [_campaign(one) for one in table.window.campaigns],
            "total": table.rules.to_json(),
            "stretches": [_row(one) for one in table.stretches],
            "attention": None if patterns is None else patterns.to_json(),
            "missing": missing,
            "groups": Counter(reason.group for one in rules for reason in one.unreachable.values()).most_common(),
            "reasons": [reason for one in rules for reason in _reasons(one)],
            "unreached": [
                {"stage": one.stage, "kind": one.kind, "refused": one.refused, "never": (*one.off, *one.never)}
                for one in rules
                if one.refused or one.off or one.never
            ],
        }
    )


def _window(window: Window) -> dict[str, Any]:
    counters = window.counters
    return {
        "within": None if window.within is None else clock(window.within),
        "ran": clock(window.ran),
        "cases": counters.cases,
        "findings": counters.findings,
        "verdicts": counters.by_verdict,
    }


def _campaign(one: StoredCampaign) -> dict[str, Any]:
    ran = ((one.finished or one.last_heard) - one.started).total_seconds()
    return {
        "command": scrub(one.command),
        "seed": one.seed,
        "started": f"{one.started:%Y-%m-%d %H:%M} UTC",
        "ran": clock(ran),
        "ended": one.ended or "not ended",
        "version": one.fuzzcompile_version,
    }


def _row(one: Stretch) -> dict[str, Any]:
    counts = {key: len(getattr(one, key)) for key in ("fired", "refused", "fallback", "unreachable", "off", "never")}
    return {"stage": one.stage, "kind": one.kind, "known": one.known, "share": one.share, **counts}


def _reasons(one: Stretch) -> list[dict[str, Any]]:
    """What cannot be reached, each reason once with all its names."""
    by_reason: dict[str, dict[str, Any]] = {}
    for name, reason in one.unreachable.items():
        entry = by_reason.setdefault(reason.why, {"stage": one.stage, "kind": one.kind, "names": [], "why": reason.why})
        entry["names"].append(name)
    return list(by_reason.values())
