"""The words by which a maintainer would look for a finding, read off its report and its program."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, REWRITING_STAGES
from fuzzcompile.report.words import WORDS

# What the installed torch's source says of a rewrite: the classes that it shares its code with.


def base_classes(source: str, names: Collection[str], torch: str | None) -> list[str]:
    """The bases, from the same file of torch, of its classes that are called ``names``.

    A report is often about the base class, whose code its subclasses run. Where another ``torch`` than the one that
    showed the bug is installed, nothing is read: it may be laid out otherwise.
    """
    try:
        installed = metadata.distribution("torch")
        if installed.version != torch:
            return []
        module = ast.parse(Path(str(installed.locate_file(source))).read_text(encoding="utf-8"))
    except (metadata.PackageNotFoundError, OSError, UnicodeDecodeError, SyntaxError):
        return []
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    bases = [base for name in names if name in classes for base in classes[name].bases]
    return list(dict.fromkeys(base.id for base in bases if isinstance(base, ast.Name) and base.id in classes))


# The operators that a program calls, read off its source.

_OPERATORS: dict[type[ast.operator], str] = {
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide",
    ast.Pow: "pow",
    ast.Div: "div",
    ast.Mult: "mul",
    ast.Sub: "sub",
    ast.Add: "add",
}
# Functions of a case file that set it up.
_SET_UP = {"make", "run", "reference"}


@dataclass(frozen=True)
class CalledOperator:
    """A call of an operator, and the names of the arguments that it is given by name."""

    name: str
    keywords: tuple[str, ...] = ()


def list_calls(source: str) -> list[CalledOperator]:
    """The operators that a source calls, each once, in its order.

    Text that does not parse has none. Of a case file, only its program counts: not ``make``, and not what runs it.
    """
    try:
        module = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return []
    keywords: dict[str, dict[str, None]] = {}
    for call in (call for node in _nodes(module) for call in _calls(node)):
        keywords.setdefault(call.name, {}).update(dict.fromkeys(call.keywords))
    return [CalledOperator(name, tuple(names)) for name, names in keywords.items()]


def most_telling(calls: Iterable[CalledOperator], rewrite: str) -> list[CalledOperator]:
    """The calls that tell programs apart, those first which the name of a rewrite contains.

    What every program calls is left out, unless there is nothing else.
    """
    ordered = list(calls)
    telling = [call for call in ordered if call.name not in WORDS["search"]["everywhere"]] or ordered
    named = rewrite.lower().replace("_", "")
    return sorted(
        telling, key=lambda call: (call.name.replace("_", "") not in named, call.name in WORDS["search"]["common"])
    )


def _nodes(module: ast.AST) -> Iterator[ast.AST]:
    """Every node of a program, in the order of the source; neither its set-up nor its check."""
    for child in ast.iter_child_nodes(module):
        if isinstance(child, ast.FunctionDef) and child.name in _SET_UP:
            continue
        if isinstance(module, ast.Module) and isinstance(child, ast.If):
            continue
        yield from _nodes(child)
        yield child


def _calls(node: ast.AST) -> Iterator[CalledOperator]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield CalledOperator(_OPERATORS[type(node.op)])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    # An attribute of the module itself has a name that the user chose.
    is_own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
    if not is_own and not node.func.attr.startswith("__"):
        yield CalledOperator(node.func.attr, tuple(keyword.arg for keyword in node.keywords if keyword.arg))


_MOST = 3
# Passes that hold many rules: their names lead everywhere.
_NUMBERED_PASS = re.compile(r"pass_pattern_\d+|.*_p(?:re|ost)_pass|passes?_\d+")
_VARIANT = re.compile(r"(?:_(?:inference|training|half|mask|bs\d+|fp\d+))+$")
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): *")
# Labels of an operator's rule: ``aten.celu.default``, or ``CppVecOverrides.expm1`` of a code generator.
_OPERATOR_RULE = re.compile(r"(?:aten|prims|torch|[A-Z]\w*)[.:]+_*(\w+)")


@dataclass(frozen=True)
class SearchTerms:
    """Search terms by kind; each tuple holds the most telling word first."""

    names: tuple[str, ...] = ()  # of the rewrite, its pass and its classes
    places: tuple[str, ...] = ()  # names of the source file at fault, where it holds few rules
    operators: tuple[str, ...] = ()  # the user's operators, that at fault first
    arguments: tuple[str, ...] = ()  # names of the arguments that the user gives them
    owner: str = ""  # the operator that is given the first argument
    symptoms: tuple[str, ...] = ()  # words for the kind of fault
    errors: tuple[str, ...] = ()  # the exception's type, and the words of its message that do not hang on the case
    context: tuple[str, ...] = ()  # words one of which a report on the compiler has; the first is asked for


def extract_terms(report: ReportJson, source: str, expression: str = "") -> SearchTerms:
    """The terms of a report and of the program that shows it; ``expression`` is the operation in the user's words."""
    rewrite = str((report.get("culprit") or {}).get("rewrite"))
    calls = most_telling([*list_calls(expression), *_calls_at_fault(report, source)], rewrite)
    operator, argument = _of_fingerprint(report)
    operators = _distinct([*operator, *_operators(report), *(call.name for call in calls)])
    given = [call for call in calls if call.keywords and call.name in operators]
    return SearchTerms(
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
    culprit = report.get("culprit")
    if culprit is None:
        return
    rule = _OPERATOR_RULE.match(culprit.get("rewrite") or "")
    if rule:
        yield rule[1]
    family, diff = culprit.get("family"), read_details(culprit).get("diff") or ""
    if family and f"aten.{family}." in diff:
        yield family


def _of_fingerprint(report: ReportJson) -> tuple[list[str], list[str]]:
    match = re.fullmatch(r"([\w.]+)\((\w+)\)", str((report.get("cause") or {}).get("fingerprint") or ""))
    return ([match[1].rpartition(".")[2]], [match[2]]) if match else ([], [])


def _calls_at_fault(report: ReportJson, source: str) -> list[CalledOperator]:
    lines = [match["code"] or "" for match in read_details(report.get("culprit")).get("matched") or ()]
    calls = [call for line in lines for call in list_calls(line)]
    return calls or list_calls(source)


def _place(report: ReportJson) -> Iterator[str]:
    stem = PurePosixPath(str((report.get("culprit") or {}).get("source") or "")).stem
    if stem.strip("_") not in {"", "init"} and stem not in WORDS["search"]["broad_files"]:
        yield stem


def _symptoms(report: ReportJson) -> tuple[str, ...]:
    outputs = (report.get("evidence") or {}).get("outputs") or ()
    words = WORDS["of_output"]
    kinds = [tuple(words[kind]) for output in outputs if (kind := str(output.get("finding"))) in words]
    if report.get("verdict") in ("metadata", "aliasing") and kinds:
        return kinds[0]
    return tuple(WORDS["of_verdict"].get(str(report.get("verdict")), ()))


def _errors(report: ReportJson) -> Iterator[str]:
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
