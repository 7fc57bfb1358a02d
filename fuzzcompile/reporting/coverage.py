"""The report of what campaigns have reached of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment


def coverage_page(facts: Mapping[str, Any]) -> str:
    """The report in Markdown, of the plain facts that :mod:`fuzzcompile.commands.coverage_report` gathers."""
    template = environment().get_template("reports/coverage.md.j2")
    return template.render(
        facts, versions=versions({**facts["environment"], "torch": facts["torch"]}), percent=_percent
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
