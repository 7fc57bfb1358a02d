"""The report of what campaigns have reached of the compiler."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment


def coverage_page(content: Mapping[str, object], machine: Mapping[str, object]) -> str:
    """The report in Markdown.

    Args:
        content: what :func:`fuzzcompile.commands.coverage_report.report_of` gathers, by the template's names.
        machine: the environment in which the corpus is counted, torch among it.
    """
    template = environment().get_template("reports/coverage.md.j2")
    return template.render(content, versions=versions(machine), percent=percent)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, ``-`` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
