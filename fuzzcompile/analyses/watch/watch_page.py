"""A watch as one self-contained HTML page: the steps, plots over them, and the triage of an unexplained one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from markupsafe import Markup

from fuzzcompile.analyses.watch.step_records import Summary, losses
from fuzzcompile.analyses.watch.watch_text import GROUPS, advice, conclusions, format_errors
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.charts import Panel, Series, chart_or_reason
from fuzzcompile.report.pages.case_page import render_section


def page_of_watch(summary: Summary) -> str:
    """The page; without matplotlib it says in place of the plots what to install."""
    shown = [group for group in GROUPS if any(group in step.made for step in summary.judged)]
    report = cast("ReportJson | None", summary.report)
    page = templates().get_template("pages/watch.html.j2")
    return page.render(
        summary=summary,
        conclusions=list(conclusions(summary)),
        advice=list(advice(summary)),
        errors=_drawn(summary, shown),
        losses=_losses(summary),
        groups={group: GROUPS[group] for group in shown},
        errors_of=format_errors,
        triage=None if report is None else render_section(report, name=str(summary.case or "CASE")),
        fuzzcompile=__version__,
    )


def _drawn(summary: Summary, groups: Sequence[str]) -> Markup:
    steps = summary.judged
    if not steps or not groups:
        return Markup("<p>{}</p>").format("No step was judged.")
    series = [Series(GROUPS[group], [step.made.get(group) for step in steps]) for group in groups]
    floor = Series("rounding (perturbed eager runs)", [max(step.floor.values(), default=None) for step in steps], True)
    first = next((index for index, step in enumerate(steps) if step.unexplained), None)
    return chart_or_reason(
        [step.step for step in steps],
        [Panel("error made in the step / size", [*series, floor])],
        axis="step",
        about=f"{summary.script}: errors made in sampled steps",
        highlight=None if first is None else (first, f"step {steps[first].step}"),
    )


def _losses(summary: Summary) -> Markup | None:
    seen, _ = losses(summary.folder)
    steps = sorted(set(seen.get("compiled", {})) & set(seen.get("eager", {})))
    if len(steps) < 2:
        return None
    runs = [run for run in ("compiled", "eager", "perturbed") if run in seen]
    curves = [Series(run, [seen[run].get(step) for step in steps]) for run in runs]
    apart = []
    for curve in curves:
        pairs = [(loss, seen["eager"][step]) for loss, step in zip(curve.values, steps, strict=True)]
        far = [None if loss is None else abs(loss - eager) / max(abs(eager), 1e-30) for loss, eager in pairs]
        apart += [Series(curve.name, far)] if curve.name != "eager" else []
    panels = [Panel("loss", curves, log=False), Panel("distance from eager / loss", apart)]
    about = f"{summary.script}: losses from the state of step {steps[0]}"
    return chart_or_reason(steps, panels, axis="step", about=about)
