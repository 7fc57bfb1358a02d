"""What ``watch`` saw of a script, step by step, as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fuzzcompile import __version__
from fuzzcompile.contract import ReportJson
from fuzzcompile.reporting.page import section_of
from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment as templates


@dataclass(frozen=True)
class Plot:
    """A chart (:func:`fuzzcompile.reporting.charts.chart_or_reason`) with its heading, and what it shows in words."""

    heading: str
    chart: Markup
    caption: str


@dataclass(frozen=True)
class Step:
    """A row of the table of steps, as text; ``is_wrong`` marks a step that rounding does not explain."""

    cells: Sequence[str]
    is_wrong: bool = False


@dataclass(frozen=True)
class WatchPage:
    """What the page says.

    Attributes:
        script: what ran.
        verdict: in a word or two.
        is_fine: whether rounding explains every step.
        sentences: what was seen, with the rule and its numbers; one paragraph.
        advice: what to do next, without a full stop.
        plots: from top to bottom.
        columns: headings of the table of steps.
        steps: its rows.
        remarks: what was not looked at, and why; counts of samples.
        triages: for each report of ``triage``, what was judged and what to type for it.
        environment: :func:`fuzzcompile.execution.environment.describe`.
    """

    script: str
    verdict: str
    is_fine: bool
    sentences: Sequence[str]
    advice: str
    plots: Sequence[Plot]
    columns: Sequence[str]
    steps: Sequence[Step]
    remarks: Sequence[str] = ()
    triages: Sequence[tuple[str, str, ReportJson]] = ()
    environment: Mapping[str, object] | None = None

    def html(self) -> str:
        """The document."""
        return (
            templates()
            .get_template("reports/watch.html.j2")
            .render(
                page=self,
                sections=[(what, section_of(report, name=name)) for what, name, report in self.triages],
                versions=versions(self.environment or {}),
                fuzzcompile=__version__,
            )
        )
