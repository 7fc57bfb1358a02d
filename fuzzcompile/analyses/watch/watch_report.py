"""A watch for the terminal and as one self-contained HTML page: its steps, and what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from fuzzcompile.analyses.watch.step_records import StepReport, Summary, calls_collectives, losses, wrong_by_value
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.package_files import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.charts import Panel, Series, chart
from fuzzcompile.report.pages.case_page import render_section
from fuzzcompile.report.proof import format_number
from fuzzcompile.report.verdict_text import print_report

GROUPS = {
    "outputs": "outputs", "loss": "loss", "gradients": "gradients", "gradient_norm": "grad norm",
    "buffers": "buffers", "parameters": "parameters",
}  # fmt: skip
"""The groups of values of a step, with their headings."""
_ROWS = 40


def step_line(step: StepReport) -> str:
    """One step in a line, as it is judged."""
    if step.verdict is None:
        return f"step {step.step}: not judged: {step.detail}"
    made = ", ".join(f"{GROUPS[group]} {format_number(error)}" for group, error in step.made.items() if error)
    found = "NOT EXPLAINED BY ROUNDING" if step.unexplained else "explained by rounding"
    detail = f"; {step.detail}" if step.detail else ""
    return f"step {step.step}: {step.verdict}, {found}{detail}" + (f" [made here: {made}]" if made else "")


def print_summary(console: Console, summary: Summary) -> None:
    """Print the table of steps, the conclusions, the triage of the first unexplained step, and what to do."""
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    if summary.judged:
        console.print(make_steps_table(summary))
        say("  errors made in the step, against its float64 run, in units of the value's size: compiled/eager;")
        say("  same: the compiled values are eager's bit for bit, as are all groups that have no column")
        if len(summary.judged) > _ROWS:
            say(f"  and {len(summary.judged) - _ROWS} more steps (--json, or steps.jsonl, has all)")
    for line in conclusions(summary):
        say(line)
    if summary.report is not None:
        print_report(console, cast(ReportJson, summary.report), name=str(summary.case or "CASE"))
    for line in advice(summary):
        say(line)


def make_steps_table(summary: Summary) -> Table:
    """The judged steps; the unexplained ones are kept when there are too many."""
    kept = {step.step for step in [*summary.unexplained, *summary.judged][:_ROWS]}
    shown = [step for step in summary.judged if len(summary.judged) <= _ROWS or step.step in kept]
    groups = [group for group in GROUPS if any(step.made.get(group) or step.eager.get(group) for step in shown)]
    table = Table("step", "loss", "verdict", box=None, pad_edge=False)
    for group in groups:
        table.add_column(GROUPS[group], no_wrap=True)
    for step in shown:
        loss = step.loss.get("compiled")
        errors = (format_errors(step, group) for group in groups)
        style = "bold red" if step.unexplained else None
        table.add_row(str(step.step), "" if loss is None else f"{loss:.6g}", step.verdict, *errors, style=style)
    return table


def format_errors(step: StepReport, group: str) -> str:
    """The compiled and the eager error of one group."""
    if group not in step.made:
        return "-"
    made, eager = step.made[group], step.eager.get(group, 0.0)
    return "same" if made == eager == 0 else f"{made:.1e}/{eager:.1e}"


def conclusions(summary: Summary) -> Iterator[str]:
    """Yield the results of the watch, in sentences."""
    job, judged, unjudged = summary.job, summary.judged, [step for step in summary.steps if step.verdict is None]
    names = ", ".join(dict.fromkeys(job.callables)) or "no compiled callable"
    together = f" in each of {summary.nproc} processes" if summary.nproc > 1 else ""
    ending = "; interrupted" if summary.interrupted else ""
    of_samples = f"{len(judged)} of {len(job.sampled)} samples judged"
    yield f"{summary.script}: {job.steps} steps ({job.calls} calls of {names}){together}, {of_samples}{ending}"
    yield from (f"  {count} samples skipped: {reason}" for reason, count in job.skipped.items())
    yield from (f"  {count} samples lost: their process was {reason}" for reason, count in job.lost.items())
    for reason, count in Counter(step.detail for step in unjudged).items():
        yield f"  {count} samples not judged: {reason}"
    for unseen, count in Counter(unseen for step in judged for unseen in step.unseen).items():
        yield f"  not looked at in {count} samples: {unseen}"
    if job.error is not None:
        yield f"  watching ended with an internal error ({job.error}); report it to the fuzzcompile developers"
    if summary.script_status:
        where = "" if summary.script_rank is None else f" on rank {summary.script_rank}, and the other ranks with it,"
        yield f"  the script ended by itself{where} with exit status {summary.script_status}"
    if summary.unexplained:
        yield from _about_first(summary, summary.unexplained[0])
    elif doubtful := [str(step.step) for step in judged if step.verdict == "suspicious"]:
        yield f"Suspicious, and not confirmed: step {', '.join(doubtful)}."
    elif judged:
        yield "Rounding explains every step that was judged."
    if summary.trajectories is not None:
        yield summary.trajectories.said
        if summary.trajectories.ended:
            yield f"  trajectories were not followed further: {summary.trajectories.ended}"


def _about_first(summary: Summary, first: StepReport) -> Iterator[str]:
    yield (
        f"Step {first.step} is the first sampled step that rounding does not explain: {first.verdict}; "
        f"{first.detail}. All runs started from the state of that step, so that the error was made in it."
    )
    if first.layer is not None:
        yield f"  the culprit's site is in layer {first.layer}"
    if first.report is not None and not wrong_by_value(first.report) and not summary.alone:
        yield (
            "  no graph of the step shows it when compiled anew: look at recompiles, dynamic shapes, another "
            "backend, and code outside of graphs"
        )
    elif summary.alone is not None:
        alone = "finds the same" if summary.alone else "does not: it takes the state of the script's process"
        yield f"  {summary.case}: a fresh process {alone}"


def advice(summary: Summary) -> Iterator[str]:
    """Return the next thing to do, as a sentence."""
    if summary.case is not None and summary.nproc > 1 and calls_collectives(summary.case):
        yield f"Next: {format_command('triage', summary.case, nproc=summary.nproc)}"
    elif summary.case is not None:
        yield f"Next: {format_command('triage', summary.case)}; {format_command('minimize', summary.case)}"
    elif summary.unexplained:
        step = summary.unexplained[0].step
        several = summary.nproc if summary.nproc > 1 else None
        again = format_command("watch", summary.script, every=step, steps=step, nproc=several)
        yield f"Next, with more time (--timeout) and the script's arguments: {again}"
    elif not summary.job.calls:
        yield "Next: call torch.compile in this process, before the first step; or wrap a step with fuzzcompile.watch."
    elif not summary.job.sampled and not summary.job.skipped:
        every = max(1, summary.job.steps // 5)
        yield f"Next: the script made fewer steps than --every asks for; use --every {every}."
    elif summary.trajectories is not None and summary.trajectories.parted and not summary.trajectories.chaotic:
        yield "Next: sample more steps, with a smaller --every."
    elif summary.judged:
        yield "Next: nothing; where losses differ between eager and compiled, the trajectories above say how far."


# The page: the steps, plots over them, and the triage of an unexplained one.


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
    return chart(
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
    return chart(steps, panels, axis="step", about=about)
