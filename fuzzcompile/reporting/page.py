"""A report as one self-contained HTML page: no network, no scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from fuzzcompile import __version__
from fuzzcompile.contract import ReportJson
from fuzzcompile.hints import Named
from fuzzcompile.reporting import proof
from fuzzcompile.reporting.circumstances import circumstances
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.tables import as_run, error_rows
from fuzzcompile.reporting.verdict import advice, meaning
from fuzzcompile.reporting.versions import versions
from fuzzcompile.templating import environment as templates

_BARS = 60
# Ends of the chart's scale, in units of the result's size: one ulp of float64 is 2e-16, and beyond 10 all is lost.
_LEAST, _MOST = 1e-17, 1e1
_FLOAT32_ULP = 2.0**-23


def page_of(report: ReportJson, environment: Mapping[str, object], *, name: str | Named) -> str:
    """The page on a report (contract form).

    Args:
        report: what ``triage --json`` prints.
        environment: where it was judged (:func:`fuzzcompile.execution.environment.describe`).
        name: how the case is named on a command line.

    Returns:
        The HTML document.
    """
    where = IssueFacts(report, None, environment).where
    threads = report.get("evidence", {}).get("threads") or environment.get("threads")
    return (
        templates()
        .get_template("reports/proof.html.j2")
        .render(
            **_parts_of(report, name),
            versions=versions({**environment, **where, "threads": threads}),
            fuzzcompile=__version__,
        )
    )


def section_of(report: ReportJson, *, name: str | Named) -> Markup:
    """What the page on a report says of it, as a part of another page."""
    return Markup(templates().get_template("reports/judged.html.j2").render(**_parts_of(report, name)))


def _parts_of(report: ReportJson, name: str | Named) -> dict[str, object]:
    rows, left_out = error_rows(IssueFacts(report, None, {}))
    bars = proof.bars(report)
    return {
        "report": report,
        "meaning": meaning(report),
        "advice": advice(report, Named.of(name).to_publish()),
        "outputs": rows,
        "left_out": left_out,
        "circumstances": list(circumstances(report)),
        "bars": bars[:_BARS],
        "bars_left_out": max(0, len(bars) - _BARS),
        "width": _percent,
        "tick": _percent(_FLOAT32_ULP),
        "tick_at": proof.figure(_FLOAT32_ULP),
        "least": proof.figure(_LEAST),
        "most": proof.figure(_MOST),
        "figure": proof.figure,
        "answer": as_run,
        "matched": proof.matched,
        "step_of": proof.step_of,
        "facts_of": lambda culprit: list(proof.facts_of(culprit)),
        "diff_of": proof.diff_of,
        "tried": proof.tried(report),
        "workaround": proof.workaround_with_cost(report),
    }


def _percent(value: float | None) -> str:
    """How far along the scale a value lies, in percent; None lies at its start."""
    if value is None or value <= _LEAST:
        return "0"
    if not math.isfinite(value):
        return "100"
    share = math.log(min(value, _MOST) / _LEAST) / math.log(_MOST / _LEAST)
    return f"{100 * share:.1f}"
