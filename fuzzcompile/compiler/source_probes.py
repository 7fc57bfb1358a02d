"""Functions of the compiler compiled anew from a changed syntax tree, and probes of the lines that they execute."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.rule_catalogue import get_target_name, list_known_rules
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.pass_patches import list_plain_passes
from fuzzcompile.compiler.watch.rule_labels import explain_refusals, get_base_name
from fuzzcompile.model.errors import UsageError, describe_error
from fuzzcompile.model.focus_plan import FocusObservation, FocusWatch, Span
from fuzzcompile.run.pool.worker import get_current_device, say
from fuzzcompile.run.torch_attributes import ReplacedAttribute

ROOT = Path(torch.__file__).resolve().parent.parent
"""The folder that files of the compiler are named from: `torch/_inductor/ir.py`."""

Position = tuple[int, int]
"""A line, from 1, and a column in bytes, from 0."""
Transform = Callable[[ast.Module], ast.Module]


CODE = ReplacedAttribute(
    "types",
    "FunctionType.__code__",
    unprobed="It is Python's own, and functions whose code is not exchanged are listed.",
)


@dataclass
class FunctionExchange:
    """The functions of a file that a change concerns, with their code before and after."""

    file: str  # the file, relative to `ROOT`
    # each live function, its own code and the changed code
    exchanged: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = field(default_factory=list)
    # live functions of the file whose code is not that of its source; they keep it
    strangers: list[str] = field(default_factory=list)

    def install(self) -> None:
        """Give every function the changed code."""
        for function, _, changed in self.exchanged:
            CODE.put(changed, function)

    def remove(self) -> None:
        """Give every function its own code back."""
        for function, own, _ in self.exchanged:
            CODE.put(own, function)


def recompile_file(file: str, change: Transform, constants: Mapping[str, object] | None = None) -> FunctionExchange:
    """Compile ``file`` with ``change`` applied to its tree, not installing it; UsageError says what cannot be done.

    ``change`` keeps every function, and their order. ``constants`` are objects that take the place of these strings.
    """
    path = ROOT / file
    _import_file(file)
    own = compile(parse_file(file), str(path), "exec", dont_inherit=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a constant that is called is a placeholder
        changed = compile(change(parse_file(file)), str(path), "exec", dont_inherit=True)
    pairs = dict(_pair_codes(own, _replace_constants(changed, constants or {}), file))
    result = FunctionExchange(file)
    for function in _find_live_functions(str(path)):
        before, after = function.__code__, pairs.get(function.__code__)
        if after is None or after.co_freevars != before.co_freevars:
            result.strangers.append(function.__qualname__)
        elif after != before:
            result.exchanged.append((function, before, after))
    return result


def parse_file(file: str) -> ast.Module:
    """The syntax tree of a file, relative to `ROOT`; UsageError where it cannot be read or parsed."""
    try:
        return ast.parse((ROOT / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"Cannot read {file} of the installed torch: {error}.") from error


def _import_file(file: str) -> None:
    name = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except Exception as error:  # a module for another platform may raise whatever it likes
        raise UsageError(f"{file} cannot be imported in this torch ({describe_error(error)}).") from error


def _pair_codes(
    own: types.CodeType, changed: types.CodeType, file: str
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    yield own, changed
    before, after = (
        [constant for constant in code.co_consts if isinstance(constant, types.CodeType)] for code in (own, changed)
    )
    if [code.co_name for code in before] != [code.co_name for code in after]:
        raise UsageError(f"The change to {file} adds or removes a function in {own.co_name}.")
    for pair in zip(before, after, strict=True):
        yield from _pair_codes(*pair, file)


def _replace_constants(code: types.CodeType, constants: Mapping[str, object]) -> types.CodeType:
    def replace(value: object) -> object:
        if isinstance(value, types.CodeType):
            return _replace_constants(value, constants)
        return constants.get(value, value) if isinstance(value, str) else value

    return code.replace(co_consts=tuple(replace(value) for value in code.co_consts))


def _find_live_functions(path: str) -> list[types.FunctionType]:
    """Functions of the process whose code comes from the file; those that the collector was told to skip as well."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    listed = [item for item in gc.get_objects() if type(item) is types.FunctionType]
    if frozen:
        gc.freeze()
    return [function for function in listed if function.__code__.co_filename == path]


def place_at(node: ast.AST, old: ast.stmt | ast.expr) -> Any:
    """Put the node and all in it on the line of the old one, so that tracebacks keep their lines."""
    for part in ast.walk(node):
        ast.copy_location(part, old)
    return ast.fix_missing_locations(node)


# Lines of the compiler that a compile executed.

_NOTE = "\0fuzzcompile: a probe was reached"


@dataclass(frozen=True)
class LineProbe:
    """A statement of a function, or a branch of an expression (``b`` in ``a and b``), that notes its execution."""

    span: Span  # its lines; of a statement with a body, those of the header
    start: Position
    end: Position  # where it ends, its body included


@dataclass
class LineWatch:
    """Probes in the functions that hold some lines."""

    probes: list[LineProbe] = field(default_factory=list)  # all of them, by number
    reached: set[int] = field(default_factory=set)  # the numbers of those reached since it was last cleared
    unwatched: list[str] = field(default_factory=list)  # functions and files that cannot be watched, and why

    def list_executed(self) -> set[Span]:
        """The statements and branches reached."""
        return {self.probes[number].span for number in self.reached}


@contextlib.contextmanager
def watch_lines(spans: Iterable[Span]) -> Iterator[LineWatch]:
    """Watch the statements that meet these spans until the block ends, in every thread.

    Only functions are watched: what runs on import alone has run. A file that is not imported yet is imported; one that
    cannot be imported or read is listed in `LineWatch.unwatched`.
    """
    lines, wanted = LineWatch(), set(spans)
    with contextlib.ExitStack() as undo:
        for file in sorted({span.file for span in wanted}):
            probing = _ProbeTransformer(lines.probes, file, [span for span in wanted if span.file == file])
            try:
                result = recompile_file(file, probing.visit, {_NOTE: lines.reached.add})
            except UsageError as error:
                lines.unwatched.append(str(error))
                continue
            lines.unwatched += [f"{file}: {name} runs other code than the file's" for name in result.strangers]
            result.install()
            undo.callback(result.remove)
        yield lines


class _ProbeTransformer(ast.NodeTransformer):
    def __init__(self, probes: list[LineProbe], file: str, wanted: list[Span]) -> None:
        self.probes, self.file, self.wanted, self.depth = probes, file, wanted, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.depth:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [line for statement in block for line in self._insert_note(statement)])
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        for outer in (*node.decorator_list, node.args):  # they run where the function is defined
            self.visit(outer)
        self.depth += 1
        documented = int(ast.get_docstring(node, clean=False) is not None)
        visited: list[ast.stmt] = [self.visit(statement) for statement in node.body]
        node.body = visited[:documented]
        for statement in visited[documented:]:
            node.body += self._insert_note(statement)
        self.depth -= 1
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.visit(node.args)
        self.depth += 1
        node.body = self._probe_branch(self.visit(node.body))
        self.depth -= 1
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        super().generic_visit(node)
        node.body, node.orelse = self._probe_branch(node.body), self._probe_branch(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        super().generic_visit(node)
        node.values[1:] = [self._probe_branch(value) for value in node.values[1:]]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return node  # positions inside f-strings are wrong before Python 3.12

    def _insert_note(self, statement: ast.stmt) -> list[ast.stmt]:
        note = self._make_note(statement, _find_header_end(statement))
        return [statement] if note is None else [ast.copy_location(ast.Expr(note), statement), statement]

    def _probe_branch(self, value: ast.expr) -> ast.expr:
        note = self._make_note(value, value.end_lineno or value.lineno) if self.depth else None
        return value if note is None else ast.copy_location(ast.BoolOp(ast.Or(), [note, value]), value)

    def _make_note(self, node: ast.stmt | ast.expr, last: int) -> ast.expr | None:
        span = Span(self.file, node.lineno, last)
        if not any(span.overlaps(wanted) for wanted in self.wanted):
            return None
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        self.probes.append(LineProbe(span, (node.lineno, node.col_offset), end))
        note: ast.expr = place_at(ast.Call(ast.Constant(_NOTE), [ast.Constant(len(self.probes) - 1)], []), node)
        return note


def _find_header_end(statement: ast.stmt) -> int:
    cases = [case.pattern for case in getattr(statement, "cases", [])]
    within: list[ast.stmt | ast.pattern] = [*getattr(statement, "body", []), *cases]
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, within[0].lineno - 1) if within else end


# Observations of a focus in the judged compile of a case.

# The probes of this process: they stay for as long as the same lines are watched, because setting them takes a second.
_probes: dict[tuple[Span, ...], LineWatch] = {}
_installed_probes = contextlib.ExitStack()


@contextlib.contextmanager
def watch_focus(watch: FocusWatch) -> Iterator[Callable[[Ledger], FocusObservation]]:
    """Watch what is compiled in the block; what is yielded says what a ledger, and the lines until then, showed."""
    if watch.spans not in _probes:
        _probes.clear()
        _installed_probes.close()
        _probes[watch.spans] = _installed_probes.enter_context(watch_lines(watch.spans))
    probes = _probes[watch.spans]
    probes.reached.clear()
    with explain_refusals(watch.rules):
        yield lambda ledger: _observe(watch, ledger, probes)


def _observe(watch: FocusWatch, ledger: Ledger, probes: LineWatch) -> FocusObservation:
    ran = probes.list_executed()
    met = {place for place in ran if any(place.overlaps(span) for span in watch.spans)}
    snapshots = (shot for frame in ledger.frames for record in frame.records for shot in record.snapshots)
    called = {target for snapshot in snapshots for target in snapshot.called_targets} if watch.operators else set()
    return FocusObservation(
        checks={(rule.stage, rule.rewrite, why): count for (rule, why), count in ledger.checks.items()},
        operators=frozenset(map(get_target_name, called)).intersection(watch.operators),
        spans=frozenset(span for span in watch.spans if any(map(span.overlaps, met))),
        lines=frozenset((place.file, place.first) for place in met),
        unwatched=tuple(probes.unwatched),
    )


# The rewrites and passes that can be vetoed, as a worker knows them.

RuleNames = tuple[str, str, str]


def list_rules() -> list[RuleNames]:
    """Stage, name and name without variant of all that can be vetoed here; any stage may call what has none."""
    say("looking up what can be vetoed")
    rows = [row for row in list_known_rules(torch.device(get_current_device())) if row.kind in ("pass", "pattern")]
    named = {(row.stage, row.name) for row in rows} | {("", name) for name in list_plain_passes()}
    return sorted((stage, name, get_base_name(name)) for stage, name in named)
