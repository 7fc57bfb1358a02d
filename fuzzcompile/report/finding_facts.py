"""The facts of one finding: all that an issue draft may claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzcompile.model.contract import CauseJson, OutputJson, ReportJson, ShownJson, read_target
from fuzzcompile.model.culprit_contract import CulpritJson, read_details
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.severity import Severity, rate_severity
from fuzzcompile.model.verdicts import Verdict

if TYPE_CHECKING:
    from fuzzcompile.corpus.machines import Machines
    from fuzzcompile.corpus.records import Related, Umbrella
    from fuzzcompile.corpus.replay.replay_history import History
    from fuzzcompile.corpus.transactions import Mark


# What the source of a reproducer says of a program: its settings, and the operation that it shows.

_LONGEST = 70  # characters of an expression in a title
# Settings that make eager and compiled comparable, and change nothing else.
_NEUTRAL = ("fallback_random",)


@dataclass(frozen=True)
class ProgramSetting:
    """A module-level name of a case that sets how it is compiled and run (docs/machines.md)."""

    opt_ins: tuple[str, ...] = ()
    backward: bool = False
    grad: str | None = None
    calls: bool = False


def read_setting(source: str | None) -> ProgramSetting | None:
    """The settings of a case file; None for a user's own script, and for what cannot be read."""
    module = _parsed(source or "")
    if module is None or not any(isinstance(node, ast.FunctionDef) and node.name == "make" for node in module):
        return None
    values = dict(_constants(module))
    return ProgramSetting(
        tuple(_opt_ins(values)),
        backward=bool(values.get("BACKWARD")),
        grad=str(values["GRAD"]) if values.get("GRAD") else None,
        calls="CALLS" in values,
    )


def find_expression(source: str | None, operator: str | None = None) -> str | None:
    """The last short expression of a reproducer's function ``program``; of those that call ``operator``, if any do."""
    for node in _parsed(source or "") or ():
        if isinstance(node, ast.FunctionDef) and node.name == "program":
            codes = [code for part in node.body if (code := short(ast.unparse(part))) and not code.isidentifier()]
            return next(
                (code for code in reversed(codes) if operator and operator in code), codes[-1] if codes else None
            )
    return None


def short(code: str) -> str | None:
    """The expression of a line of code, without what it is assigned to; None if it is long or is none."""
    text = re.sub(r"^(return\s+|[\w., ]+ = )", "", code.strip())
    return text if text and "\n" not in text and len(text) <= _LONGEST else None


def case_part(source: str | None) -> str:
    """The source of a reproducer without its docstring and without the part that runs and checks it."""
    body, _, _ = (source or "").partition("\nif __name__ == ")
    return re.sub(r'\A\s*("""|\'\'\').*?\1\n', "", body, flags=re.DOTALL).strip()


def _parsed(source: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return None


def _constants(module: list[ast.stmt]) -> Iterator[tuple[str, object]]:
    for node in module:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                yield node.targets[0].id, ast.literal_eval(node.value)
            except ValueError:
                yield node.targets[0].id, True  # tensors, as in CALLS


def _opt_ins(values: Mapping[str, object]) -> Iterator[str]:
    for key, value in _items(values.get("OPTIONS")):
        yield f"options={{{key!r}: {value!r}}}"
    for area, settings in _items(values.get("CONFIG")):
        yield from (f"torch._{area}.config.{key} = {value!r}" for key, value in _items(settings))
    if values.get("MODE"):
        yield f"mode={values['MODE']!r}"
    if values.get("PATH"):
        yield {"export": "torch.export.export", "aoti": "torch._inductor.aoti_compile_and_package"}.get(
            str(values["PATH"]), "torch.compile"
        )
    if values.get("DYNAMIC"):
        yield "dynamic=True"


def _items(value: object) -> list[tuple[str, object]]:
    return [(str(key), item) for key, item in value.items() if key not in _NEUTRAL] if isinstance(value, dict) else []


# What the judge says of an output that is correct.
_HARMLESS = ("same", "close", "wild")


@dataclass(frozen=True)
class IssueFacts:
    """One finding.

    Attributes:
        shown: the plain script, the ladder of backends and what else was seen when the reproducer was made.
        subject: how it is named on a command line.
    """

    report: ReportJson  # what triage says
    reproducer: str | None  # the script that shows it and checks itself, if there is one
    environment: Mapping[str, object]  # where it was seen (:func:`fuzzcompile.run.device.describe_environment`)
    first_seen: str | None = None  # the date on which a campaign found it; None for a case that no campaign found
    hits: int = 0  # how many cases showed it
    confirmed: bool = False  # whether the reproducer exited with 1 on its own in a clean process
    shown: ShownJson = field(default_factory=ShownJson)
    history: History | None = None  # the versions of torch on which it was run again; None if on none
    related: Sequence[Related] = ()  # public reports that a search found, the likeliest first
    searched: str | None = None  # the date of that search; None if there was none
    queries: Sequence[str] = ()  # what it asked for
    mark: Mark | None = None  # what a person said of the finding; None if nothing
    umbrella: Umbrella | None = None  # the group that it belongs to, and what a person said of that
    machines: Machines | None = None  # where it was seen and judged; None for a case that is in no corpus
    subject: CommandSubject = field(default_factory=lambda: CommandSubject("FINDING"))

    @property
    def promise(self) -> str | None:
        """The promise of a setting that it breaks, in the words of the report; None if it breaks none."""
        return (self.report.get("evidence") or {}).get("promise")

    @property
    def is_script(self) -> bool:
        """Return whether the reproducer is a user's script, which has neither our check nor our exit status."""
        return self.reproducer is not None and not re.search(r"^def make\(", self.reproducer, re.MULTILINE)

    @property
    def verdict(self) -> str:
        """The verdict's name."""
        return str(self.report.get("verdict") or "unknown")

    @property
    def is_bug(self) -> bool:
        """Return whether there is a bug to file."""
        is_bug = self.report.get("is_bug")
        return is_bug if is_bug is not None else self.verdict in {str(v) for v in Verdict if v.is_bug}

    @property
    def device(self) -> str | None:
        """The device on which it was seen."""
        return self.report.get("device") or _text(self.environment.get("device"))

    @property
    def torch(self) -> str | None:
        """The version of torch in which it was seen."""
        return self.report.get("torch") or _text(self.environment.get("torch"))

    @property
    def target(self) -> str | None:
        """The device that the compiler was told; None where it compiled for the one that ran."""
        return read_target(self.report)

    @property
    def seen_on_device(self) -> bool:
        """Return whether a device of the kind for which the case was compiled showed the bug."""
        target = self.report.get("target")
        return target is None or target["confirmed_on_device"]

    @property
    def where(self) -> dict[str, str | None]:
        """The torch, the device that ran and the one that the compiler was told, by their names in an environment."""
        return {"torch": self.torch, "device": self.device, "target": self.target}

    @property
    def culprit(self) -> CulpritJson | None:
        """The culprit, if it is known."""
        return self.report.get("culprit") or None

    @property
    def proved(self) -> bool:
        """Return whether switching off the culprit alone removed the bug."""
        return bool(self.culprit and self.culprit.get("necessary"))

    @property
    def cause(self) -> CauseJson | None:
        """The change under which the case passes, if it is known."""
        return self.report.get("cause") or None

    @property
    def severity(self) -> Severity | None:
        """The severity; None for no bug."""
        return rate_severity(self.report) if self.is_bug else None

    @property
    def plain(self) -> str | None:
        """The script for an issue, if it showed the bug."""
        return self.shown.get("plain") if self.shown.get("plain_shows", True) else None

    @property
    def kernel(self) -> str | None:
        """The operator whose own kernel is wrong, such as ``aten.cat.default``; None for any other culprit."""
        kernel = read_details(self.culprit).get("aten_kernel")
        if kernel is not None:
            return kernel["operator"]
        blamed = str((self.culprit or {}).get("rewrite") or "")
        return blamed if self.without_compiler and blamed.startswith("aten.") else None

    @property
    def without_compiler(self) -> bool:
        """Return whether a script without torch.compile shows the fault."""
        return bool(self.shown.get("eager_only"))

    @property
    def eager_is_wrong(self) -> bool:
        """Return whether eager mode, too, calls the operator at fault in the way that goes wrong."""
        return bool(self.shown.get("eager_is_wrong"))

    @property
    def expression(self) -> str | None:
        """The operation at fault as a user writes it; None where no short text stands for it."""
        if self.shown.get("expression"):
            return self.shown["expression"]
        codes = [short(str(line["code"])) for line in read_details(self.culprit).get("matched") or ()]
        operator = re.match(r"aten\.(\w+)", str((self.culprit or {}).get("rewrite") or ""))
        written = next(filter(None, reversed(codes)), None) or find_expression(
            self.reproducer, operator and operator[1]
        )
        return written or (operator and operator[0])

    @property
    def low_confidence(self) -> bool:
        """Return whether triage was not sure."""
        return self.report.get("confidence") != "high"

    @property
    def outputs(self) -> Sequence[OutputJson]:
        """Evidence by output."""
        return self.report.get("evidence", {}).get("outputs") or ()

    @property
    def wrong(self) -> list[OutputJson]:
        """Outputs that are wrong: gradients last, the worst of each first."""
        wrong = [entry for entry in self.outputs if entry.get("finding") not in (*_HARMLESS, None)]
        return sorted(wrong, key=lambda entry: (_is_gradient(entry), -_badness(entry)))

    @property
    def shares_wrongly(self) -> bool:
        """Return whether the only fault is which memory the outputs share."""
        return bool(self.wrong) and all(entry.get("finding") == "alias" for entry in self.wrong)

    @property
    def measured(self) -> OutputJson | None:
        """The output with the worst error; None where none was measured."""
        candidates = self.wrong or sorted(self.outputs, key=_badness, reverse=True)
        return next((entry for entry in candidates if _is_measured(entry)), None)

    @property
    def detail(self) -> str:
        """The detail of the report: usually an error's message."""
        return str(self.report.get("detail") or "")


def _text(value: object) -> str | None:
    return str(value) if value else None


def _badness(entry: OutputJson) -> float:
    error = entry.get("max_abs_error_compiled")
    if error is None:
        return float("inf") if entry.get("non_finite") else 0.0
    return float(error) / (float(entry.get("scale") or 0.0) or 1.0)


def _is_gradient(entry: OutputJson) -> bool:
    return ObservableName.parse(str(entry.get("name"))).gradient


def _is_measured(entry: OutputJson) -> bool:
    return entry.get("finding") not in ("dtype", "shape", "stride", "alias", "missing", "integer") and (
        entry.get("max_abs_error_compiled") is not None or bool(entry.get("non_finite"))
    )
