"""A report on one case as one self-contained HTML page, without network and scripts, and what its templates show."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fuzzcompile.corpus.transactions import PROJECT
from fuzzcompile.model.contract import ErrorMapJson, OutputJson, ReportJson, read_target
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.verdicts import VALUES
from fuzzcompile.model.versions import __version__
from fuzzcompile.report import proof
from fuzzcompile.report.circumstances import circumstances, versions
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.proof import as_run, error_rows, format_number, source_link
from fuzzcompile.report.verdict_text import advice, meaning
from fuzzcompile.report.wording import summary

# Error maps as pictures: one cell a square, its colour the size of the error on a logarithmic scale.

_LEVELS = range(1, 8)
# The lowest level holds all errors that are this much smaller than the largest: rounding, beside what is wrong.
_DECADES = 3.0


@dataclass(frozen=True)
class Picture:
    """The errors of one side."""

    side: str
    svg: Markup
    largest: str


@dataclass(frozen=True)
class HeatMap:
    """Eager and compiled side by side, on one scale.

    ``legend`` says of each level which errors it holds, from the lowest to the highest.
    """

    output: str
    pictures: Sequence[Picture]
    legend: Sequence[str]
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
    scale = _Scale(max(positive, default=1.0))
    marked = _make_cell(drawn, output.get("where"))
    pictures = [_picture(side, drawn[side], scale, marked) for side in ("eager", "compiled")]
    starts = [format_number(scale.start(level)) for level in _LEVELS] if positive else []
    legend = [*(f"below {start}" for start in starts[:1]), *(f"from {start}" for start in starts)]
    return HeatMap(str(output.get("name")), pictures, legend, 0 in cells, None in cells, caption(drawn))


def caption(drawn: ErrorMapJson) -> str:
    """Describe rows, columns and cells, and the number of elements gathered into one cell."""
    shape, split = drawn["shape"], drawn["row_dims"]
    rows, columns = drawn["rows"][-1], drawn["columns"][-1]
    cell = math.ceil(rows / (len(drawn["rows"]) - 1)), math.ceil(columns / (len(drawn["columns"]) - 1))
    each = (
        "one cell is one element"
        if cell == (1, 1)
        else f"one cell is the largest error of up to {cell[0]} × {cell[1]} elements"
    )
    if rows == 1:
        return f"Shape {tuple(shape)}: its {columns} elements from left to right; {each}."
    down = "dimension 0" if split == 1 else f"dimensions 0 to {split - 1}, one behind the other"
    return f"Shape {tuple(shape)}: down, {down} ({rows}); across, dimension {split} ({columns}); {each}."


@dataclass(frozen=True)
class _Scale:
    """Levels of equal ratio below the largest error."""

    largest: float

    def level(self, error: float) -> int:
        return max((level for level in _LEVELS if error >= self.start(level)), default=0)

    def start(self, level: int) -> float:
        """The smallest error of a level above the lowest."""
        return float(self.largest * 10 ** (-_DECADES * (len(_LEVELS) + 1 - level) / len(_LEVELS)))


def _make_cell(drawn: ErrorMapJson, where: Sequence[int] | None) -> tuple[int, int] | None:
    """The cell (row, column) that holds the element of that index."""
    shape, split = drawn["shape"], drawn["row_dims"]
    if where is None or len(where) != len(shape):
        return None
    row = 0
    for index, size in zip(where[:split], shape[:split], strict=True):
        row = row * size + index
    return _find_range(row, drawn["rows"]), _find_range(where[split], drawn["columns"])


def _find_range(index: int, edges: Sequence[int]) -> int:
    return max(place for place, start in enumerate(edges[:-1]) if start <= index)


def _picture(
    side: str, errors: Sequence[Sequence[float | None]], scale: _Scale, marked: tuple[int, int] | None
) -> Picture:
    """The cells of one side, one path each colour: exact ones stay empty."""
    height, width = len(errors), len(errors[0])
    paths = defaultdict[str, list[str]](list)
    for y, row in enumerate(errors):
        for kind, x, length in _runs(row, scale):
            paths[kind].append(f"M{x} {y}h{length}v1h-{length}z")
    drawn = [Markup('<path class="{}" d="{}"/>').format(kind, "".join(parts)) for kind, parts in sorted(paths.items())]
    if marked is not None:
        square = Markup('<rect class="{2}" x="{1}" y="{0}" width="1" height="1"/>')
        drawn += [square.format(*marked, name) for name in ("halo", "worst")]  # seen on cells of any colour
    finite = [error for row in errors for error in row if error is not None]
    missing = any(error is None for row in errors for error in row)
    largest = "not finite" if missing else f"at most {format_number(max(finite, default=0.0))}"
    svg = Markup(
        '<svg class="map" viewBox="0 0 {} {}" style="aspect-ratio:{}/{}" preserveAspectRatio="none" role="img" '
        'aria-label="Errors of {}: {}.">{}</svg>'
    ).format(width, height, *_form(width, height), side, largest, Markup("").join(drawn))
    return Picture(side, svg, largest)


def _form(width: int, height: int) -> tuple[int, int]:
    """The form of the picture: that of the grid, but no narrower or flatter than one to eight."""
    return max(width, math.ceil(height / 8)), max(height, math.ceil(width / 8))


def _runs(row: Sequence[float | None], scale: _Scale) -> Iterator[tuple[str, int, int]]:
    """Neighbouring cells of one colour: its class, where they begin, and how many they are."""
    start = 0
    kinds = ["" if error == 0 else "bad" if error is None else f"h{scale.level(error)}" for error in row]
    for place in range(1, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[start]:
            if kinds[start]:
                yield kinds[start], start, place - start
            start = place


# Logarithmic axes: how far along one a value lies, and where its labels stand.

_MOST_TICKS = 7


@dataclass(frozen=True)
class LogScale:
    """An axis from 10 to the power of ``low`` to 10 to the power of ``high``."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Iterable[float | None], *, decades: int = 2) -> LogScale | None:
        """The axis that holds all positive finite values, of at least so many decades; None if there are none."""
        positive = [value for value in values if value is not None and 0 < value < math.inf]
        if not positive:
            return None
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        return cls(min(low, high - decades), high)

    def share(self, value: float | None) -> float | None:
        """Return the place on the axis, from 0 to 1: 0 for zero, 1 beyond the end and for NaN; None for None."""
        if value is None:
            return None
        if value == 0:
            return 0.0
        if not math.isfinite(value):
            return 1.0
        return min(1.0, max(0.0, (math.log10(value) - self.low) / (self.high - self.low)))

    def percent(self, value: float | None) -> str:
        """The share as CSS writes it; the start of the axis for None."""
        return f"{100 * (self.share(value) or 0):.1f}"

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
    """A sentence with what stands in backticks as code, and issues on GitHub as links.

    A backtick without a partner goes.
    """
    parts = _CODE.split(scrub(text))
    pieces = (
        Markup("<code>{}</code>").format(part) if place % 2 else _with_links(part.replace("`", ""))
        for place, part in enumerate(parts)
    )
    return Markup("").join(pieces)


def _with_links(text: str) -> Markup:
    pieces, end = list[Markup](), 0
    for issue in _ISSUE.finditer(text):
        name = f"{'' if issue[1] == PROJECT else issue[1]}#{issue[2]}"
        link = Markup('<a href="{}" rel="noreferrer">{}</a>').format(issue[0], name)
        pieces += [escape(text[end : issue.start()]), link]
        end = issue.end()
    return Markup("").join([*pieces, escape(text[end:])])


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


@dataclass(frozen=True)
class Errors:
    """The largest errors of one output, as numbers for the axis and as text for the table."""

    name: str
    eager: float | None
    compiled: float | None
    noise: float | None
    cells: Mapping[str, str]


@dataclass(frozen=True)
class ReportView:
    """A report as pages show it.

    Attributes:
        facts: the report, with what else is known of the finding.
        name: how the case is named on a command line.
    """

    facts: IssueFacts
    name: str | CommandSubject

    @property
    def report(self) -> ReportJson:
        """The report itself."""
        return self.facts.report

    @property
    def target(self) -> str | None:
        """The device that the compiler was told, if it is not the one that ran."""
        return read_target(self.report)

    @cached_property
    def statement(self) -> Markup:
        """The verdict in one or a few sentences."""
        text = meaning(self.report)
        return inline(summary(self.facts) if self.report["is_bug"] else f"{text[:1].upper()}{text[1:]}.")

    @cached_property
    def detail(self) -> Markup:
        """The report's detail; empty where the statement has it already."""
        detail = self.facts.detail
        return Markup("") if not detail or " ".join(detail.split())[:40] in str(self.statement) else inline(detail)

    @property
    def advice(self) -> Markup:
        """Advice on it; the workaround stands on lines of its own."""
        return inline(advice({**self.report, "workaround": None}, CommandSubject.from_name(self.name).to_publish()))

    @property
    def workaround(self) -> str | None:
        """Settings that a user can make today, with measurements."""
        return proof.workaround_with_cost(self.report)

    @property
    def circumstances(self) -> list[Markup]:
        """Further circumstances of the verdict."""
        return [inline(line) for line in circumstances(self.report)]

    # -- errors -------------------------------------------------------------------------------------

    @property
    def is_about_values(self) -> bool:
        """Return whether numbers tell anything: of another layout, an alias or an error, they do not."""
        return not self.report["is_bug"] or self.report["verdict"] in VALUES or bool(self.measured)

    @cached_property
    def measured(self) -> list[Errors]:
        """The outputs whose errors were measured, wrong ones first."""
        return [errors for errors in self._outputs if any(errors.cells[key] != "–" for key in _ERROR_CELLS)]

    @cached_property
    def unmeasured(self) -> list[tuple[str, Markup]]:
        """Outputs that differ in something else than values, each with what differs."""
        shown = {errors.name for errors in self.measured}
        wrong = [entry for entry in self.facts.wrong if str(entry.get("name")) not in shown]
        return [(str(entry.get("name")), _difference(entry)) for entry in wrong]

    @property
    def has_evidence(self) -> bool:
        """Return whether anything was compared, or bears on the verdict: where a compile raises, nothing may be."""
        return bool(self.facts.outputs or self.circumstances)

    @property
    def left_out(self) -> int:
        """Number of outputs that the tables leave out."""
        return error_rows(self.facts)[1]

    @property
    def same(self) -> int:
        """Number of outputs with the same bits."""
        return sum(entry.get("finding") == "same" for entry in self.facts.outputs)

    @cached_property
    def axis(self) -> LogScale | None:
        """The axis of the errors; None where all are zero or none was measured."""
        return LogScale.over(
            value for errors in self.measured for value in (errors.eager, errors.compiled, errors.noise)
        )

    @cached_property
    def maps(self) -> list[HeatMap]:
        """Heat maps of the errors in the outputs, as far as the report has them."""
        return [drawn for entry in self.facts.outputs if (drawn := heat_map(entry)) is not None]

    @cached_property
    def _outputs(self) -> list[Errors]:
        rows, _ = error_rows(self.facts)
        entries = {str(entry.get("name")): entry for entry in self.facts.outputs}
        differing = [row for row in rows if entries[row["name"]].get("finding") != "same"]
        return [_errors(row, entries[row["name"]]) for row in differing]

    # -- the culprit and the steps ------------------------------------------------------------------

    @property
    def culprits(self) -> Sequence[CulpritJson]:
        """The culprit, then what else is needed."""
        own = self.facts.culprit
        return [*([own] if own is not None else []), *(self.report.get("contributors") or ())]

    def source_of(self, culprit: CulpritJson) -> Markup:
        """The compiler's code at fault: a link to it where its commit is known."""
        if culprit is self.facts.culprit:
            return _linked(source_link(self.facts))
        source = culprit.get("source")
        return inline(f"`{source}:{culprit.get('line')}`") if source else Markup("")

    @cached_property
    def steps(self) -> list[proof.Bar]:
        """The rewrites that moved a bit, in order, as far as a replay gave a number."""
        return self._moves[:_STEPS]

    @property
    def steps_left_out(self) -> int:
        """Number of steps that are left out."""
        return max(0, len(self._moves) - _STEPS)

    @cached_property
    def _moves(self) -> list[proof.Bar]:
        return [bar for bar in proof.bars(self.report) if (bar.float64, bar.native) != (None, None)]

    @cached_property
    def steps_axis(self) -> LogScale:
        """The axis of the steps, in units of the result's size; one ulp of float32 lies on it."""
        moves = [value for step in self.steps for value in (step.float64, step.native)]
        return LogScale.over([*moves, _ULP, 1.0]) or LogScale(-8, 0)

    @property
    def ulp(self) -> float:
        """One unit in the last place of float32, at 1."""
        return _ULP

    @property
    def has_steps(self) -> bool:
        """Return whether the steps are worth a section: of a layout, an alias or an error they say nothing."""
        return not self.report["is_bug"] or self.report["verdict"] in VALUES

    @cached_property
    def tried(self) -> list[proof.Tried]:
        """The ablations."""
        return proof.tried(self.report)

    @property
    def tried_has_errors(self) -> bool:
        """Return whether errors that ablations left mean anything here."""
        return proof.has_errors(self.report)

    # -- what templates call on a part ----------------------------------------------------------------

    answer = staticmethod(as_run)
    figure = staticmethod(proof.format_number)
    matched = staticmethod(proof.matched)
    shown_of = staticmethod(proof.format_shown)
    step_of = staticmethod(proof.find_step)
    diff_of = staticmethod(proof.get_diff)
    inline = staticmethod(inline)

    @staticmethod
    def facts_of(culprit: CulpritJson) -> list[proof.Fact]:
        """The other details of a culprit."""
        return list(proof.list_proof_facts(culprit))


_ERROR_CELLS = ("max_abs_error_eager", "max_abs_error_compiled")


def _errors(row: Mapping[str, str], entry: OutputJson) -> Errors:
    broken = bool(entry.get("non_finite")) and entry.get("max_abs_error_compiled") is None
    return Errors(
        row["name"],
        entry.get("max_abs_error_eager"),
        float("inf") if broken else entry.get("max_abs_error_compiled"),
        entry.get("noise_floor"),
        row,
    )


def _difference(entry: OutputJson) -> Markup:
    kind, detail = str(entry.get("finding") or ""), str(entry.get("detail") or "")
    return inline(": ".join(part for part in (_KINDS.get(kind, kind), detail) if part))


_KINDS = {"alias": "memory", "integer": "values", "missing": "", "stride": "strides"}


def _linked(markdown: str) -> Markup:
    """A link or code as Markdown writes them, as HTML."""
    link = _LINK.fullmatch(markdown)
    if link is None:
        return inline(markdown)
    return Markup('<a href="{}" rel="noreferrer"><code>{}</code></a>').format(link[2], link[1])


def blamed_lines(report: ReportJson) -> Iterator[int]:
    """The lines of the program that the culprit matched, by number, where they stand in the case's own file."""
    culprit: CulpritJson = report.get("culprit") or {}
    for place in (*proof.matched(culprit), str(culprit.get("site") or "")):
        line = re.match(r"(?:.*[/\\])?(?P<file>[^/\\:]+)\.py:(?P<line>\d+)", place)
        if line is not None and line["file"] == report.get("case"):
            yield int(line["line"])


# The page, and the section of another page.


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
