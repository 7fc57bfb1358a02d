"""A report on one case as one self-contained HTML page: no network, no scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from markupsafe import Markup

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.circumstances import versions
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.pages.report_view import ReportView, blamed_lines, listing, scrubbed


def render_case_page(
    report: ReportJson, environment: Mapping[str, object], *, name: str | CommandSubject, source: str | None = None
) -> str:
    """The page on a report (contract form).

    Args:
        report: what ``triage --json`` prints.
        environment: where it was judged (:func:`fuzzcompile.run.device.describe_environment`).
        name: how the case is named on a command line.
        source: the text of the case's file; None to leave it out.

    Returns:
        The HTML document.
    """
    judged = _judged(report, environment, name, source)
    facts = judged.facts
    threads = report.get("evidence", {}).get("threads") or environment.get("threads")
    return (
        templates()
        .get_template("pages/case.html.j2")
        .render(
            judged=judged,
            machine=describe_machine(facts),
            source=None if source is None else listing(source, set(blamed_lines(report))),
            versions=versions({**environment, **facts.where, "threads": threads}),
            fuzzcompile=__version__,
        )
    )


def render_section(report: ReportJson, *, name: str | CommandSubject) -> Markup:
    """Render the page on a report as a section of another page."""
    judged = _judged(report, {}, name, None)
    return Markup(templates().get_template("pages/section.html.j2").render(judged=judged))


def describe_machine(facts: IssueFacts) -> list[str]:
    """The torch and the device in a few words each."""
    device = str(facts.environment.get("device_name") or facts.environment.get("cpu") or "")
    where = f"{facts.device}{f' ({device})' if device else ''}"
    told = [] if facts.target is None else [f"compiled for {facts.target}"]
    return [f"torch {facts.torch}", scrub(where), *told]


def _judged(
    report: ReportJson, environment: Mapping[str, object], name: str | CommandSubject, source: str | None
) -> ReportView:
    clean = cast("ReportJson", scrubbed(report))
    named = CommandSubject.from_name(name)
    options = {option: value for option, value in named.options.items() if option != "plant"}  # a file of this machine
    return ReportView(IssueFacts(clean, source, environment), replace(named, name=scrub(named.name), options=options))
