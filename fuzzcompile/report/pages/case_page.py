"""A report on one case as one self-contained HTML page, without network and scripts, and what its templates show."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, cast

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fuzzcompile.corpus.transactions import PROJECT
from fuzzcompile.model.contract import ErrorMapJson, OutputJson, ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.package_files import get_environment as templates
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.verdicts import VALUES
from fuzzcompile.model.versions import __version__
from fuzzcompile.report import proof
from fuzzcompile.report.circumstances import circumstances, versions
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.proof import error_rows, format_number, source_link
from fuzzcompile.report.verdict_text import advice, meaning
from fuzzcompile.report.wording import summary

# Error maps as pictures: one cell a square, its colour the size of the error on a logarithmic scale.

_LEVELS = range(1, 8)
# The lowest level holds all errors that are this much smaller than the largest: rounding, beside what is wrong.
_DECADES = 3.0


class Picture(NamedTuple):
    """The errors of one side."""

    side: str
    largest: str
    size: tuple[int, int]
    form: tuple[int, int]  # that of the grid, but no narrower or flatter than one to eight
    paths: Sequence[tuple[str, str]]  # SVG by class of colour; exact cells stay empty


class HeatMap(NamedTuple):
    """Eager and compiled side by side, on one scale."""

    output: str
    pictures: Sequence[Picture]
    legend: Sequence[str]  # which errors each level holds, from the lowest on
    worst: tuple[int, int] | None  # the cell (column, row) that holds the largest error
    has_exact: bool
    has_non_finite: bool
    caption: str


def heat_map(output: OutputJson) -> HeatMap | None:
    """The heat map of an output; None where the report has none, or both sides are exact."""
    drawn = output.get("error_map")
    if drawn is None:
        return None
    cells = [error for side in ("eager", "compiled") for row in drawn[side] for error in row]
    positive = [error for error in cells if error]
    if not positive and None not in cells:
        return None
    # Levels of equal ratio below the largest error; each begins at its smallest error.
    largest = max(positive, default=1.0)
    starts = [largest * 10 ** (-_DECADES * (len(_LEVELS) + 1 - level) / len(_LEVELS)) for level in _LEVELS]
    pictures = [_picture(side, drawn[side], starts) for side in ("eager", "compiled")]
    shown = [format_number(start) for start in starts] if positive else []
    legend = [*(f"below {start}" for start in shown[:1]), *(f"from {start}" for start in shown)]
    shape, split, where, worst = drawn["shape"], drawn["row_dims"], output.get("where"), None
    if where is not None and len(where) == len(shape):
        row = 0
        for index, size in zip(where[:split], shape[:split], strict=True):
            row = row * size + index
        worst = bisect_right(drawn["columns"][:-1], where[split]) - 1, bisect_right(drawn["rows"][:-1], row) - 1
    return HeatMap(str(output.get("name")), pictures, legend, worst, 0 in cells, None in cells, caption(drawn))


def caption(drawn: ErrorMapJson) -> str:
    """Describe rows, columns and cells, and the number of elements gathered into one cell."""
    shape, split, rows, columns = tuple(drawn["shape"]), drawn["row_dims"], drawn["rows"][-1], drawn["columns"][-1]
    high, wide = math.ceil(rows / (len(drawn["rows"]) - 1)), math.ceil(columns / (len(drawn["columns"]) - 1))
    largest = f"one cell is the largest error of up to {high} × {wide} elements"
    each = "one cell is one element" if high == wide == 1 else largest
    if rows == 1:
        return f"Shape {shape}: its {columns} elements from left to right; {each}."
    down = "dimension 0" if split == 1 else f"dimensions 0 to {split - 1}, one behind the other"
    return f"Shape {shape}: down, {down} ({rows}); across, dimension {split} ({columns}); {each}."


def _picture(side: str, errors: Sequence[Sequence[float | None]], starts: Sequence[float]) -> Picture:
    def colour(error: float | None) -> str:
        return "bad" if error is None else f"h{bisect_right(starts, error)}" if error else ""

    paths = defaultdict[str, str](str)
    for y, row in enumerate(errors):
        x = 0
        for kind, cells in groupby(row, colour):
            length = len(list(cells))
            paths[kind] += f"M{x} {y}h{length}v1h-{length}z" if kind else ""
            x += length
    paths.pop("", None)
    finite = [error for row in errors for error in row if error is not None]
    is_finite = len(finite) == sum(map(len, errors))
    largest = f"at most {format_number(max(finite, default=0.0))}" if is_finite else "not finite"
    width, height = len(errors[0]), len(errors)
    form = max(width, math.ceil(height / 8)), max(height, math.ceil(width / 8))
    return Picture(side, largest, (width, height), form, sorted(paths.items()))


_MOST_TICKS = 7


@dataclass(frozen=True)
class LogScale:
    """An axis from 10 to the power of ``low`` to 10 to the power of ``high``."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> LogScale | None:
        """The axis that holds all positive finite values, of at least two decades; None if there are none."""
        powers = [math.log10(value) for value in values if value is not None and 0 < value < math.inf]
        if not powers:
            return None
        high = math.ceil(max(powers))
        return cls(min(math.floor(min(powers)), high - 2), high)

    def percent(self, value: float | None) -> str:
        """The place on the axis as CSS writes it: the start for zero and None, the end for NaN and beyond it."""
        if not value:
            return "0.0"
        share = (math.log10(value) - self.low) / (self.high - self.low) if math.isfinite(value) else 1.0
        return f"{100 * min(1.0, max(0.0, share)):.1f}"

    @property
    def ticks(self) -> list[tuple[float, int]]:
        """Powers of ten to label: the share along the axis, and the exponent."""
        step = max(1, math.ceil((self.high - self.low) / (_MOST_TICKS - 1)))
        powers = range(self.low, self.high + 1, step)
        return [((power - self.low) / (self.high - self.low), power) for power in powers]


# Text of reports as HTML: code in backticks, highlighted sources, without paths of this machine.

_CODE = re.compile(r"`([^`]+)`")
_ISSUE = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


def inline(text: str) -> Markup:
    """A sentence with what stands in backticks as code, and issues on GitHub as links."""

    def link(issue: re.Match[str]) -> str:
        return f'<a href="{issue[0]}" rel="noreferrer">{"" if issue[1] == PROJECT else issue[1]}#{issue[2]}</a>'

    pieces = (
        Markup("<code>{}</code>").format(part) if place % 2 else Markup(_ISSUE.sub(link, escape(part.replace("`", ""))))
        for place, part in enumerate(_CODE.split(scrub(text)))
    )
    return Markup("").join(pieces)


def listing(source: str, marked: Container[int] = ()) -> Markup:
    """Python source, highlighted, a ``span`` of class ``line`` each line; those ``marked`` (from 1) stand out."""
    # Without stripping, which would shift the numbers of the lines.
    text = highlight(scrub(source), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True, classprefix="t-"))
    lines = text.rstrip("\n").split("\n")
    return Markup("").join(
        Markup('<span class="line{}">{}\n</span>').format(" marked" if number in marked else "", Markup(line))
        for number, line in enumerate(lines, 1)
    )


def scrubbed(value: object) -> object:
    """The same JSON without paths of this machine in any text."""
    if isinstance(value, str):
        return scrub(value) if "/" in value or "\\" in value else value
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, list | tuple) else value


_STEPS = 60  # rewrites shown
_ULP = 2.0**-23  # of float32
_LINK = re.compile(r"\[([^\]]+)\]\((https://[^)\s]+)\)")


class Errors(NamedTuple):
    """The largest errors of one output, as numbers for the axis and as text for the table."""

    name: str
    eager: float | None
    compiled: float | None
    noise: float | None
    cells: Mapping[str, str]


def view_report(facts: IssueFacts, name: str | CommandSubject) -> dict[str, object]:
    """A report as templates show it; ``name`` is how the case is named on a command line."""
    report, text = facts.report, meaning(facts.report)
    statement = inline(summary(facts) if report["is_bug"] else f"{text[:1].upper()}{text[1:]}.")
    in_statement = " ".join(facts.detail.split())[:40] in str(statement)
    lines = [inline(line) for line in circumstances(report)]
    culprit, needed = facts.culprit, [(contributor, "") for contributor in report.get("contributors") or ()]
    moves = [bar for bar in proof.bars(report) if (bar.float64, bar.native) != (None, None)]
    steps = moves[:_STEPS]
    return {
        "report": report,
        "statement": statement,
        "detail": inline("" if in_statement else facts.detail),
        # The workaround stands on lines of its own.
        "advice": inline(advice({**report, "workaround": None}, CommandSubject.from_name(name).to_publish())),
        "workaround": proof.workaround_with_cost(report),
        "circumstances": lines,
        "has_evidence": bool(facts.outputs or lines),  # where a compile raises, nothing may be
        # Steps, and sums of errors, say nothing of another layout, an alias or an error.
        "about_values": not report["is_bug"] or report["verdict"] in VALUES,
        "same": sum(entry.get("finding") == "same" for entry in facts.outputs),
        "maps": [drawn for entry in facts.outputs if (drawn := heat_map(entry)) is not None],
        "culprits": [*([(culprit, source_link(facts))] if culprit is not None else []), *needed],
        "steps": steps,
        "steps_left_out": len(moves) - len(steps),
        # In units of the result's size.
        "steps_axis": LogScale.over([*(length for step in steps for length in (step.float64, step.native)), _ULP, 1.0]),
        "ulp": _ULP,
        "tried": proof.tried(report),
        "tried_has_errors": proof.has_errors(report),
        "figure": format_number,
        "inline": inline,
        "linked": _linked,
        "proof": proof,
        **_view_errors(facts),
    }


def _view_errors(facts: IssueFacts) -> dict[str, object]:
    rows, left_out = error_rows(facts)
    entries = {str(entry.get("name")): entry for entry in facts.outputs}
    measured = []
    for row in rows:
        entry, eager, compiled = entries[row["name"]], *(row[key] for key in _ERROR_CELLS)
        if entry.get("finding") != "same" and {eager, compiled} != {"–"}:
            largest = entry.get("max_abs_error_compiled")
            largest = math.inf if largest is None and entry.get("non_finite") else largest
            measured.append(
                Errors(row["name"], entry.get("max_abs_error_eager"), largest, entry.get("noise_floor"), row)
            )
    shown, unmeasured = {errors.name for errors in measured}, []
    for entry in facts.wrong:
        kind, detail = str(entry.get("finding") or ""), str(entry.get("detail") or "")
        if (name := str(entry.get("name"))) not in shown:
            unmeasured.append((name, inline(": ".join(filter(None, (_KINDS.get(kind, kind), detail))))))
    values = [value for errors in measured for value in (errors.eager, errors.compiled, errors.noise)]
    return {"measured": measured, "unmeasured": unmeasured, "left_out": left_out, "axis": LogScale.over(values)}


_ERROR_CELLS = ("max_abs_error_eager", "max_abs_error_compiled")
_KINDS = {"alias": "memory", "integer": "values", "missing": "", "stride": "strides"}


def _linked(markdown: str) -> Markup:
    link = _LINK.fullmatch(markdown)
    html = Markup('<a href="{}" rel="noreferrer"><code>{}</code></a>')
    return inline(markdown) if link is None else html.format(link[2], link[1])


def blamed_lines(report: ReportJson) -> Iterator[int]:
    """The lines of the program that the culprit matched, by number, where they stand in the case's own file."""
    culprit: CulpritJson = report.get("culprit") or {}
    for place in (*proof.matched(culprit), str(culprit.get("site") or "")):
        line = re.match(r"(?:.*[/\\])?(?P<file>[^/\\:]+)\.py:(?P<line>\d+)", place)
        if line is not None and line["file"] == report.get("case"):
            yield int(line["line"])


def render_case_page(
    report: ReportJson, environment: Mapping[str, object], *, name: str | CommandSubject, source: str | None = None
) -> str:
    """The page on a report as one HTML document, with the ``source`` of the case's file unless that is None.

    ``name`` is how the case is named on a command line, ``environment`` that in which it was judged.
    """
    facts, judged = _judged(report, environment, name, source)
    threads = report.get("evidence", {}).get("threads") or environment.get("threads")
    device_name = str(environment.get("device_name") or environment.get("cpu") or "")
    where = scrub(f"{facts.device}{f' ({device_name})' if device_name else ''}")
    page = templates().get_template("pages/case.html.j2")
    return page.render(
        judged=judged,
        machine=[f"torch {facts.torch}", where, *([f"compiled for {facts.target}"] if facts.target else [])],
        source=None if source is None else listing(source, set(blamed_lines(report))),
        versions=versions({**environment, **facts.where, "threads": threads}),
        fuzzcompile=__version__,
    )


def render_section(report: ReportJson, *, name: str | CommandSubject) -> Markup:
    """Render the page on a report as a section of another page."""
    _, judged = _judged(report, {}, name, None)
    return Markup(templates().get_template("pages/section.html.j2").render(judged=judged))


def _judged(
    report: ReportJson, environment: Mapping[str, object], name: str | CommandSubject, source: str | None
) -> tuple[IssueFacts, dict[str, object]]:
    facts = IssueFacts(cast("ReportJson", scrubbed(report)), source, environment)
    named = CommandSubject.from_name(name)
    options = {option: value for option, value in named.options.items() if option != "plant"}  # a file of this machine
    return facts, view_report(facts, replace(named, name=scrub(named.name), options=options))
