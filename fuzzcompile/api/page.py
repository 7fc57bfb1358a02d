"""A report as a piece of HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.contract import ReportJson, told
from fuzzcompile.reporting.circumstances import circumstances, several
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.proof import role_of, workaround_with_cost
from fuzzcompile.reporting.tables import error_rows
from fuzzcompile.reporting.verdict import advice, describe_culprit, meaning
from fuzzcompile.templating import environment


def notebook_html(report: ReportJson, name: str, place: str) -> str:
    """The report for a notebook's output, without scripts, style sheets or links.

    Args:
        report: what triage says.
        name: what to type for the case.
        place: where it was judged, in words.
    """
    rows, left_out = error_rows(IssueFacts(report, None, {}))
    return (
        environment()
        .get_template("reports/notebook.html.j2")
        .render(
            report=report,
            kind=("a known bug" if report.get("known") else "a bug") if report["is_bug"] else "no bug",
            meaning=meaning(report),
            device=report["device"] if told(report) is None else f"told {told(report)}",
            facts=list(_facts(report, name)),
            outputs=[row for row in rows if row["finding"] != "same"],
            left_out=left_out,
            circumstances=list(circumstances(report)),
            place=place,
        )
    )


def _facts(report: ReportJson, name: str) -> Iterator[tuple[str, str]]:
    culprit = report.get("culprit")
    if culprit:
        yield role_of(culprit).capitalize(), describe_culprit(culprit)
    elif report["is_bug"]:
        yield "Culprit", "not attributed"
    elif report.get("changed_bits"):
        names = dict.fromkeys(f"{rewrite['rewrite']} ({rewrite['stage']})" for rewrite in report["changed_bits"])
        yield "Rewrites that changed any bit", several(list(names), ", ")
    if report.get("workaround"):
        yield "Workaround", f"`{workaround_with_cost(report)}`"
    yield "What to do", "nothing new: the baseline lists it" if report.get("known") else advice(report, name)
