"""``Report``: what triage says of a call. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from rich.console import Console
from rich.text import Text

from fuzzcompile.model.contract import ReportJson, ReportMalformed, WhereJson, check_report, read_target
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.package_files import get_template
from fuzzcompile.report.circumstances import circumstances, several
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.proof import error_rows, name_role, workaround_with_cost
from fuzzcompile.report.verdict_text import advice, describe_culprit, meaning, name_culprit, print_report

_WIDTH = 120
# What to type for the case of a call, which has no file.
SCRIPT = "SCRIPT.py"


@dataclass(frozen=True, repr=False)
class Report:
    """The answer on one call of a callable.

    Printed, it is one screen of text; notebooks show it as HTML. ``str(report)`` begins with the verdict.
    """

    json: ReportJson  # the object that ``fuzzcompile triage --json`` prints (docs/machines.md), with ``where``

    @property
    def verdict(self) -> str:
        """The verdict: ``equal``, ``rounding``, ``miscompile``, ``compile_error`` and so on."""
        return self.json["verdict"]

    @property
    def is_bug(self) -> bool:
        """True if the compiler is at fault."""
        return self.json["is_bug"]

    @property
    def severity(self) -> str | None:
        """The severity of the bug, a word of :class:`fuzzcompile.model.severity.Severity`; None if there is no bug."""
        return self.json.get("severity")

    @property
    def confidence(self) -> str:
        """``high`` or ``low``."""
        return self.json["confidence"]

    @property
    def culprit(self) -> CulpritJson | None:
        """The rewrite, decomposition, lowering or kernel at fault; None if there is no bug, or none was found."""
        return self.json.get("culprit")

    @property
    def workaround(self) -> Mapping[str, object] | None:
        """A workaround that works today: ``how``, ``config``, and whether a compile with it was ``verified``."""
        return cast("Mapping[str, object] | None", self.json.get("workaround"))

    @property
    def signature(self) -> str | None:
        """The key that is equal for two reports of the same bug, a line of a baseline; None if there is no bug."""
        return self.json.get("signature")

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the reader on how the call was judged."""
        return tuple(self.json.get("evidence", {}).get("notes") or ())

    @property
    def where(self) -> Literal["worker", "in place"]:
        """``worker`` if a worker process judged a copy of the callable, ``in place`` if this process judged it."""
        return cast('Literal["worker", "in place"]', self._where["process"])

    @property
    def why_in_place(self) -> str:
        """The reason why the callable was not judged in a worker; empty if it was."""
        return self._where["why"]

    @property
    def _where(self) -> WhereJson:
        return self.json.get("where") or {"process": "worker", "why": ""}

    def to_json(self) -> ReportJson:
        """All that the report holds: finite numbers, strings, lists and dictionaries."""
        return cast(ReportJson, json.loads(json.dumps(self.json, allow_nan=False)))

    @classmethod
    def from_json(cls, text: str | Mapping[str, object]) -> Report:
        """The report in what :meth:`to_json` or a line of ``triage --json`` gave, as text or parsed.

        Raises:
            UsageError: it is neither, or says that a case could not be judged.
        """
        try:
            read = json.loads(text) if isinstance(text, str) else text
        except ValueError as error:
            raise UsageError(f"Report.from_json() takes the JSON of a report: {error}.") from error
        try:
            return cls(check_report(read))
        except ReportMalformed as error:
            raise UsageError(f"Report.from_json() takes the JSON of a report: {error}.") from error

    def __str__(self) -> str:
        """One screen of text, as the command line prints it."""
        console = Console(width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as capture:
            print_report(console, self.json, name=SCRIPT, known=bool(self.json.get("known")))
            if self.is_bug:
                console.print(f"  {SCRIPT} is a script of yours that makes this call", highlight=False)
            console.print(f"  judged {self._place}", markup=False, highlight=False, soft_wrap=True)
        return capture.get().rstrip("\n")

    def __repr__(self) -> str:
        return (
            f"<Report {self.json['case']}: {self.verdict}{f', {name_culprit(self.culprit)}' if self.culprit else ''}>"
        )

    def __rich__(self) -> Text:
        """The same text, for rich."""
        return Text(str(self))

    def _repr_html_(self) -> str:
        """The report for a notebook: no scripts, no links, the page's own colours."""
        report = self.json
        rows, left_out = error_rows(IssueFacts(report, None, {}))
        return get_template("reports/notebook.html.j2").render(
            report=report,
            kind=("a known bug" if report.get("known") else "a bug") if report["is_bug"] else "no bug",
            meaning=meaning(report),
            device=report["device"] if read_target(report) is None else f"told {read_target(report)}",
            facts=list(_collect_facts(report)),
            outputs=[row for row in rows if row["finding"] != "same"],
            left_out=left_out,
            circumstances=list(circumstances(report)),
            place=self._place,
        )

    @property
    def _place(self) -> str:
        if self.where == "worker":
            return "in a worker process, on a copy of the callable"
        return f"in place, in this process: {self.why_in_place}"


def _collect_facts(report: ReportJson) -> Iterator[tuple[str, str]]:
    culprit = report.get("culprit")
    if culprit:
        yield name_role(culprit).capitalize(), describe_culprit(culprit)
    elif report["is_bug"]:
        yield "Culprit", "not attributed"
    elif report.get("changed_bits"):
        names = dict.fromkeys(f"{rewrite['rewrite']} ({rewrite['stage']})" for rewrite in report["changed_bits"])
        yield "Rewrites that changed any bit", several(list(names), ", ")
    if report.get("workaround"):
        yield "Workaround", f"`{workaround_with_cost(report)}`"
    yield "What to do", "nothing new: the baseline lists it" if report.get("known") else advice(report, SCRIPT)
