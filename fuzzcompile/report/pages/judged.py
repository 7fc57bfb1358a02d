"""What a page says of one report: its sentences, errors, culprits and steps, ready to be laid out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from fuzzcompile.model.contract import CulpritJson, OutputJson, ReportJson, read_target
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.verdicts import VALUES
from fuzzcompile.report import proof
from fuzzcompile.report.circumstances import circumstances
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.pages.heat_maps import HeatMap, heat_map
from fuzzcompile.report.pages.markup import inline
from fuzzcompile.report.pages.scales import LogScale
from fuzzcompile.report.place import source_link
from fuzzcompile.report.tables import as_run, error_rows
from fuzzcompile.report.verdict import advice, meaning
from fuzzcompile.report.wording import summary

_STEPS = 60  # rewrites shown
_ULP = 2.0**-23  # of float32
_LINK = re.compile(r"\[([^\]]+)\]\((https://[^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Errors:
    """The largest errors of one output, as numbers for the axis and as text for the table."""

    name: str
    eager: float | None
    compiled: float | None
    noise: float | None
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Judged:
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
        """What triage adds in words; empty where the statement has it already."""
        detail = self.facts.detail
        return Markup("") if not detail or " ".join(detail.split())[:40] in str(self.statement) else inline(detail)

    @property
    def advice(self) -> Markup:
        """What to do about it; the workaround stands on lines of its own."""
        return inline(advice({**self.report, "workaround": None}, CommandSubject.from_name(self.name).to_publish()))

    @property
    def workaround(self) -> str | None:
        """What a user can set today, with what was measured."""
        return proof.workaround_with_cost(self.report)

    @property
    def circumstances(self) -> list[Markup]:
        """What else bears on the verdict."""
        return [inline(line) for line in circumstances(self.report)]

    # -- errors -------------------------------------------------------------------------------------

    @property
    def is_about_values(self) -> bool:
        """Whether numbers tell anything: of another layout, an alias or an error, they do not."""
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
        """Whether anything was compared, or bears on the verdict: where a compile raises, nothing may be."""
        return bool(self.facts.outputs or self.circumstances)

    @property
    def left_out(self) -> int:
        """How many outputs the tables leave out."""
        return error_rows(self.facts)[1]

    @property
    def same(self) -> int:
        """How many outputs have the same bits."""
        return sum(entry.get("finding") == "same" for entry in self.facts.outputs)

    @cached_property
    def axis(self) -> LogScale | None:
        """The axis of the errors; None where all are zero or none was measured."""
        return LogScale.over(
            value for errors in self.measured for value in (errors.eager, errors.compiled, errors.noise)
        )

    @cached_property
    def maps(self) -> list[HeatMap]:
        """Where in the outputs the errors are, as far as the report says."""
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
        """How many of them are left out."""
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
        """Whether the steps are worth a section: of a layout, an alias or an error they say nothing."""
        return not self.report["is_bug"] or self.report["verdict"] in VALUES

    @cached_property
    def tried(self) -> list[proof.Tried]:
        """The ablations."""
        return proof.tried(self.report)

    @property
    def tried_has_errors(self) -> bool:
        """Whether errors that ablations left mean anything here."""
        return proof.has_errors(self.report)

    # -- what templates call on a part ----------------------------------------------------------------

    answer = staticmethod(as_run)
    figure = staticmethod(proof.figure)
    matched = staticmethod(proof.matched)
    shown_of = staticmethod(proof.shown_of)
    step_of = staticmethod(proof.step_of)
    diff_of = staticmethod(proof.diff_of)
    inline = staticmethod(inline)

    @staticmethod
    def facts_of(culprit: CulpritJson) -> list[proof.Fact]:
        """The other details of a culprit."""
        return list(proof.facts_of(culprit))


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
