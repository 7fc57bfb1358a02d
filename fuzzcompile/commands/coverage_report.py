"""A coverage table as a report in Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict

import torch

from fuzzcompile import __version__
from fuzzcompile.campaign.budget import clock
from fuzzcompile.commands.attention import AttentionCoverage
from fuzzcompile.commands.coverage import RULES, CoverageTable
from fuzzcompile.execution.environment import describe
from fuzzcompile.privacy import scrub
from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment


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
    machine = {**describe(torch.device(table.device), table.target), "torch": table.torch}
    return (
        environment()
        .get_template("reports/coverage.md.j2")
        .render(
            table=table,
            total=table.rules,
            rules=rules,
            groups=Counter(reason.group for row in rules for reason in row.unreachable.values()).most_common(),
            reasons=[(*place, listed) for place, listed in names.items()],
            attention=patterns,
            missing=missing,
            version=__version__,
            versions=versions(machine),
            clock=clock,
            percent=percent,
            scrub=scrub,
        )
    )


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, ``-`` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
