"""The words by which a maintainer would look for a finding, read off its report and its program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, REWRITING_STAGES
from fuzzcompile.report.search.definitions import base_classes
from fuzzcompile.report.search.program import Call, calls_of, most_telling

_MOST = 3
# Words by which users describe each kind of fault; the first is asked for, all of them count in the ranking.
_OF_OUTPUT = {
    "stride": ("stride", "layout", "contiguous", "memory format"),
    "alias": ("alias", "aliasing", "mutation", "copy", "clone"),
    "dtype": ("dtype", "type promotion"),
    "shape": ("shape", "size"),
    "nonfinite": ("nan", "inf", "infinity"),
}
_OF_VERDICT = {
    "miscompile": ("incorrect", "wrong", "silent", "silently", "mismatch", "drops", "ignores"),
    "wrong_gradient": ("gradient", "gradients", "backward"),
    "nonfinite": _OF_OUTPUT["nonfinite"],
    "precision_loss": ("precision", "accuracy", "numerical"),
    "aliasing": _OF_OUTPUT["alias"],
    "metadata": ("stride", "dtype", "shape"),
    "compile_error": ("error", "fails", "exception"),
    "runtime_error": ("error", "fails", "exception"),
    "accepts_invalid": ("error", "raise", "raises", "validation", "invalid"),
    "crash": ("segfault", "crash", "segmentation fault"),
    "timeout": ("hang", "hangs", "timeout"),
    "nondeterministic": ("nondeterministic", "non-deterministic", "flaky"),
}
# Passes that hold many rules, and files of many rules: their names lead everywhere.
_NUMBERED_PASS = re.compile(r"pass_pattern_\d+|.*_p(?:re|ost)_pass|passes?_\d+")
_VARIANT = re.compile(r"(?:_(?:inference|training|half|mask|bs\d+|fp\d+))+$")
_BROAD_FILES = {
    *("common", "cpp", "decomposition", "decompositions", "functional", "graph", "ir", "joint_graph", "kernel"),
    *("lowering", "misc_patterns", "post_grad", "pre_grad", "scheduler", "simd", "triton", "wrapper"),
}
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): *")
# Labels of an operator's rule: ``aten.celu.default``, or ``CppVecOverrides.expm1`` of a code generator.
_OPERATOR_RULE = re.compile(r"(?:aten|prims|torch|[A-Z]\w*)[.:]+_*(\w+)")


@dataclass(frozen=True)
class Terms:
    """What to search for, by kind; each tuple holds the most telling word first.

    Attributes:
        names: of the rewrite, its pass and its classes.
        places: names of the source file at fault, where it holds few rules.
        operators: the user's operators, that at fault first.
        arguments: names of the arguments that the user gives them.
        owner: the operator that is given the first argument.
        symptoms: words for the kind of fault.
        errors: the exception's type, and the words of its message that do not hang on the case.
        context: words one of which a report on the compiler has; the first is asked for.
    """

    names: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    owner: str = ""
    symptoms: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    context: tuple[str, ...] = ()


def terms_of(report: ReportJson, source: str, expression: str = "") -> Terms:
    """The terms of a report and of the program that shows it.

    Args:
        report: of the finding.
        source: a case file or a reproducer.
        expression: the operation at fault in the user's words, where it is known.
    """
    rewrite = str((report.get("culprit") or {}).get("rewrite"))
    calls = most_telling([*calls_of(expression), *_calls_at_fault(report, source)], rewrite)
    operator, argument = _of_fingerprint(report)
    operators = _distinct([*operator, *_operators(report), *(call.name for call in calls)])
    given = [call for call in calls if call.keywords and call.name in operators]
    return Terms(
        names=_distinct([name for name in _names(report) if name not in operators]),
        places=tuple(_place(report)),
        operators=operators,
        arguments=_distinct([*argument, *(keyword for call in given for keyword in call.keywords)]),
        owner=next(iter([*operator, *(call.name for call in given)]), ""),
        symptoms=_symptoms(report),
        errors=tuple(_errors(report)),
        context=_context(report),
    )


def _names(report: ReportJson) -> Iterator[str]:
    culprit = report.get("culprit")
    if culprit is None or culprit.get("stage") not in REWRITING_STAGES:
        return
    told = [culprit.get("rewrite"), *(culprit.get("siblings") or ()), culprit.get("family"), culprit.get("pass")]
    named = [_VARIANT.sub("", name) for name in told if name and name.isidentifier()]
    yield from named[:1]
    yield from base_classes(str(culprit.get("source")), named, report.get("torch"))
    yield from (name for name in named[1:] if not _NUMBERED_PASS.fullmatch(name))


def _operators(report: ReportJson) -> Iterator[str]:
    """The operators at fault: that whose rule it is, or that which a rewrite is called after."""
    culprit = report.get("culprit")
    if culprit is None:
        return
    rule = _OPERATOR_RULE.match(culprit.get("rewrite") or "")
    if rule:
        yield rule[1]
    family, diff = culprit.get("family"), str((culprit.get("details") or {}).get("diff") or "")
    if family and f"aten.{family}." in diff:
        yield family


def _of_fingerprint(report: ReportJson) -> tuple[list[str], list[str]]:
    """The operator and argument of a cause such as ``softmax(dim)``."""
    match = re.fullmatch(r"([\w.]+)\((\w+)\)", str((report.get("cause") or {}).get("fingerprint") or ""))
    return ([match[1].rpartition(".")[2]], [match[2]]) if match else ([], [])


def _calls_at_fault(report: ReportJson, source: str) -> list[Call]:
    """The calls in the user's lines that the culprit matched; of the whole program where it names none."""
    details = (report.get("culprit") or {}).get("details") or {}
    matched = details.get("matched")
    lines = [str(match.get("code") or "") for match in matched] if isinstance(matched, list) else []
    calls = [call for line in lines for call in calls_of(line)]
    return calls or calls_of(source)


def _place(report: ReportJson) -> Iterator[str]:
    stem = PurePosixPath(str((report.get("culprit") or {}).get("source") or "")).stem
    if stem.strip("_") not in {"", "init"} and stem not in _BROAD_FILES:
        yield stem


def _symptoms(report: ReportJson) -> tuple[str, ...]:
    outputs = (report.get("evidence") or {}).get("outputs") or ()
    kinds = [_OF_OUTPUT[str(output.get("finding"))] for output in outputs if output.get("finding") in _OF_OUTPUT]
    if report.get("verdict") in ("metadata", "aliasing") and kinds:
        return kinds[0]
    return _OF_VERDICT.get(str(report.get("verdict")), ())


def _errors(report: ReportJson) -> Iterator[str]:
    """The innermost type of error that the report names, and the steady part of its message."""
    detail = str(report.get("detail") or "")
    types = list(_ERROR.finditer(detail))
    if not types:
        return
    yield types[-1][1]
    message = re.split(r"[;\n]", detail[types[-1].end() :])[0]
    # What hangs on the case stands between: numbers, quoted text, sizes in brackets.
    parts = re.split(r"\S*\d\S*|'[^']*'|\"[^\"]*\"|`[^`]*`|\([^)]*\)|\[[^]]*\]|[^\w\s-]", message)
    longest = max((part.split() for part in parts), key=len, default=[])
    if len(longest) > 2:
        yield " ".join(longest[:6])


def _context(report: ReportJson) -> tuple[str, ...]:
    stage = str((report.get("culprit") or {}).get("stage"))
    asked = {DECOMPOSITION: "decomposition", FAKE_TENSOR: "fake tensor", FUNCTIONALIZATION: "functionalization"}
    words = (asked.get(stage, "inductor"), "inductor", "torch.compile", "dynamo", "decomp", "aot_eager", "aotautograd")
    return tuple(dict.fromkeys(words))


def _distinct(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))[:_MOST]
