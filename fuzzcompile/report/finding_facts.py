"""The facts of one finding: all that an issue draft may claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fuzzcompile.corpus.replay.replay_history import History, history
from fuzzcompile.model.contract import CauseJson, EvidenceJson, OutputJson, ReportJson, RungJson, ShownJson, read_target
from fuzzcompile.model.culprit_contract import CulpritJson, read_details
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.severity import rate_effect, rate_severity
from fuzzcompile.model.stages import BY_NAME
from fuzzcompile.model.verdicts import AGREEING, FORMS, Verdict

if TYPE_CHECKING:
    from fuzzcompile.corpus.machines import Machines
    from fuzzcompile.corpus.models import Related, Replay, Umbrella
    from fuzzcompile.corpus.records import Finding, Reproducer
    from fuzzcompile.corpus.transactions import Mark


# What the source of a reproducer says of a program: its settings, and the operation that it shows.

_LONGEST = 70  # characters of an expression in a title


def read_constants(source: str | None) -> dict[str, object] | None:
    """The module-level constants of a case file, True for what is no literal; None for any other text."""
    module, values = parse_code(source), dict[str, object]()
    if not any(isinstance(node, ast.FunctionDef) and node.name == "make" for node in module):
        return None
    for node in module:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                values[node.targets[0].id] = True
    return values


def find_expression(source: str | None, operator: str | None = None) -> str | None:
    """The last short expression of a reproducer's function ``program``; of those that call ``operator``, if any do."""
    for node in parse_code(source):
        if isinstance(node, ast.FunctionDef) and node.name == "program":
            codes = [code for part in node.body if (code := short(ast.unparse(part))) and not code.isidentifier()]
            calling = [code for code in codes if operator and operator in code]
            return next(iter([*reversed(calling), *codes[-1:]]), None)
    return None


def short(code: str) -> str | None:
    """The expression of a line of code, without what it is assigned to; None if it is long or is none."""
    text = re.sub(r"^(return\s+|[\w., ]+ = )", "", code.strip())
    return text if text and "\n" not in text and len(text) <= _LONGEST else None


def case_part(source: str | None) -> str:
    """The source of a reproducer without its docstring and without the part that runs and checks it."""
    body, _, _ = (source or "").partition("\nif __name__ == ")
    return re.sub(r'\A\s*("""|\'\'\').*?\1\n', "", body, flags=re.DOTALL).strip()


def parse_code(source: str | None) -> list[ast.stmt]:
    """The statements of a text; none of what is no Python."""
    try:
        return ast.parse(source or "").body
    except (SyntaxError, ValueError):
        return []


# What the judge says of an output in which no error was measured.
UNMEASURED = (*FORMS, "alias", "missing", "integer")


@dataclass
class IssueFacts:
    """One finding: what was seen of it, and below what follows from that."""

    report: ReportJson  # what triage says
    reproducer: str | None  # the script that shows it and checks itself, if there is one
    environment: Mapping[str, object]  # where it was seen (:func:`fuzzcompile.run.device.describe_environment`)
    first_seen: str | None = None  # the date on which a campaign found it; None for a case that no campaign found
    hits: int = 0  # how many cases showed it
    confirmed: bool = False  # whether the reproducer exited with 1 on its own in a clean process
    shown: ShownJson = field(default_factory=ShownJson)  # what was seen when the reproducer was made: scripts, backends
    history: History | None = None  # the versions of torch on which it was run again; None if on none
    related: Sequence[Related] = ()  # public reports that a search found, the likeliest first
    searched: str | None = None  # the date of that search; None if there was none
    queries: Sequence[str] = ()  # what it asked for
    mark: Mark | None = None  # what a person said of the finding; None if nothing
    umbrella: Umbrella | None = None  # the group that it belongs to, and what a person said of that
    grouped: int = 1  # how many findings that group has
    machines: Machines | None = None  # where it was seen and judged; None for a case that is in no corpus
    subject: CommandSubject = field(default_factory=lambda: CommandSubject("FINDING"))  # on a command line

    @classmethod
    def of_stored(
        cls,
        finding: Finding,
        reproducer: Reproducer | None,
        environment: Mapping[str, object],
        replays: Sequence[Replay],
        related: Sequence[Related],
        umbrella: Umbrella | None,
        subject: CommandSubject,
    ) -> IssueFacts:
        """The facts of a finding in a corpus, with what else the corpus holds of it."""
        from fuzzcompile.corpus.transactions import Mark, get_status

        return cls(
            _report_on_script(finding, reproducer),
            reproducer.source if reproducer is not None else None,
            environment,
            finding.first_seen.date().isoformat(),
            finding.hits,
            confirmed=reproducer is not None and reproducer.confirmed,
            shown=(reproducer.shown if reproducer is not None else None) or {},
            history=history(replays),
            related=related,
            searched=finding.searched.date().isoformat() if finding.searched else None,
            queries=finding.queries or (),
            mark=Mark(get_status(finding.status), finding.issue, finding.duplicate_of, finding.note),
            umbrella=umbrella,
            machines=finding.machines,
            subject=subject,
        )

    def __post_init__(self) -> None:
        report, shown, evidence = self.report, self.shown, self.report.get("evidence") or {}
        self.verdict, self.detail = str(report.get("verdict") or "unknown"), str(report.get("detail") or "")
        is_bug = report.get("is_bug")
        self.is_bug = is_bug if is_bug is not None else self.verdict in {str(v) for v in Verdict if v.is_bug}
        self.severity, self.effect = (rate_severity(report), rate_effect(report)) if self.is_bug else (None, None)
        self.low_confidence = report.get("confidence") != "high"
        self.path = evidence.get("path")  # what ran in the program's place
        self.promise = evidence.get("promise")  # of a setting, that it breaks, in the words of the report
        # The device on which it was seen, the torch, and the device that the compiler was told (None: the one that
        # ran); whether a device of the kind for which it was compiled showed it.
        self.device = report.get("device") or _text(self.environment.get("device"))
        self.torch = report.get("torch") or _text(self.environment.get("torch"))
        self.target, target = read_target(report), report.get("target")
        self.seen_on_device = target is None or target["confirmed_on_device"]
        self.culprit: CulpritJson | None = report.get("culprit") or None
        # The change under which the case passes; one that keeps the culprit from firing is none.
        cause = report.get("cause")
        self.cause: CauseJson | None = cause if cause and cause.get("still", "fires") == "fires" else None
        asked = (read_constants(self.reproducer) or {}).get("NPROC")
        self.nproc = asked if isinstance(asked, int) and asked > 1 else None  # processes that run it together
        self.plain = shown.get("plain") if shown.get("plain_shows", True) else None  # the script for an issue
        # What that script says under each backend: that of a target is run under none of them.
        told = shown.get("plain_shows", True) or self.target is not None
        self.ladder: Sequence[RungJson] = (shown.get("ladder") if told else None) or ()
        # Switching it off alone removed the bug, and no backend shows the bug that does not run it at all.
        self.proved = bool(self.culprit and self.culprit.get("necessary")) and not self._is_shown_before()
        # A script without torch.compile shows the fault; eager mode, too, calls the operator in the wrong way.
        self.without_compiler = bool(shown.get("eager_only"))
        self.eager_is_wrong = self.verdict == Verdict.EAGER_WRONG or bool(shown.get("eager_is_wrong"))
        # The operator whose own kernel is wrong, such as ``aten.cat.default``.
        kernel, blamed = read_details(self.culprit).get("aten_kernel"), self._rewrite if self.without_compiler else ""
        self.kernel = kernel["operator"] if kernel is not None else blamed if blamed.startswith("aten.") else None
        # Its result is right for the same values in contiguous memory.
        self.by_layout = kernel is None or kernel.get("about", "layout") == "layout"
        # Its gradient is not the derivative of its values; which of them is wrong is not known.
        self.by_gradient = kernel is not None and kernel.get("about") == "gradient"
        # In float64 it is right on these values; the dtypes of its arguments.
        self.by_dtype = kernel is not None and kernel.get("about") == "dtype"
        self.dtypes = list(dict.fromkeys(each["dtype"] for each in kernel["inputs"])) if kernel is not None else []
        # The size of its dimensions with which it is wrong, and those with which it is right on the same values.
        self.wrong_size = None if kernel is None else kernel.get("size")
        self.right_sizes: Sequence[int] = () if kernel is None else kernel.get("right_sizes", ())
        # The arguments whose layout it misreads.
        self.misreads: Sequence[str] = () if kernel is None else kernel.get("misreads", ())
        self.outputs: Sequence[OutputJson] = evidence.get("outputs") or ()
        wrong = [entry for entry in self.outputs if entry.get("finding") not in (None, *AGREEING)]
        derivatives = {str(x.get("name")): ObservableName.parse(str(x.get("name"))).derivative for x in wrong}
        # Derivatives last, the worst of each first.
        self.wrong = sorted(wrong, key=lambda entry: (bool(derivatives[str(entry.get("name"))]), -_badness(entry)))
        # Nothing but derivatives is wrong.
        self.wrong_in_gradients = bool(wrong) and all(derivatives[str(entry.get("name"))] for entry in wrong)
        # The only fault is which memory the outputs share.
        self.shares_wrongly = bool(wrong) and all(entry.get("finding") == "alias" for entry in wrong)
        self.measured: OutputJson | None = None  # the worst error; None if none is measured
        for entry in self.wrong or sorted(self.outputs, key=_badness, reverse=True):
            has_error = entry.get("max_abs_error_compiled") is not None or bool(entry.get("non_finite"))
            if has_error and self.measured is None and entry.get("finding") not in UNMEASURED:
                self.measured = entry

    def _is_shown_before(self) -> bool:
        """Return whether the culprit is Inductor's, and a backend shows the bug that ends before Inductor."""
        stage = BY_NAME.get(str((self.culprit or {}).get("stage")))
        first = next((rung["backend"] for rung in self.ladder if rung["result"] in ("wrong", "raises")), "inductor")
        return stage is not None and stage.is_inductor and first != "inductor"

    @property
    def _rewrite(self) -> str:
        return str((self.culprit or {}).get("rewrite") or "")

    @property
    def where(self) -> dict[str, str | None]:
        """The torch, the device that ran and the one that the compiler was told, by their names in an environment."""
        return {"torch": self.torch, "device": self.device, "target": self.target}

    @cached_property
    def expression(self) -> str | None:
        """The operation at fault as a user writes it; None where no short text stands for it."""
        if self.shown.get("expression"):
            return self.shown["expression"]
        codes = [short(str(line["code"])) for line in read_details(self.culprit).get("matched") or ()]
        match = re.match(r"aten\.(\w+)", self._rewrite)
        operator = None if match is None else match[1]
        written = next(filter(None, reversed(codes)), None) or find_expression(self.reproducer, operator)
        return written or (match and match[0])


def _report_on_script(finding: Finding, reproducer: Reproducer | None) -> ReportJson:
    """The report on the script that a draft shows; where it proves no culprit, its outputs in the finding's own."""
    own = reproducer.report if reproducer is not None else None
    if own is None or own["verdict"] != finding.report["verdict"]:
        return finding.report
    if (own.get("culprit") or {}).get("necessary"):
        return own
    outputs = (own.get("evidence") or {}).get("outputs") or []
    evidence: EvidenceJson = {**(finding.report.get("evidence") or {}), "outputs": outputs}
    return {**finding.report, "evidence": evidence, "detail": own.get("detail", "")}


def _text(value: object) -> str | None:
    return str(value) if value else None


def _badness(entry: OutputJson) -> float:
    error = entry.get("max_abs_error_compiled")
    if error is None:
        return float("inf") if entry.get("non_finite") else 0.0
    return float(error) / (float(entry.get("scale") or 0.0) or 1.0)
