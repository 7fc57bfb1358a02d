"""Lines of the compiler that a compile executed.

`sys.settrace` slows the whole interpreter down, and `sys.monitoring` needs Python 3.12. Only the functions that hold
the lines in question are compiled anew, with a note before each of their statements (:mod:`.recompiling`); everything
else runs as ever.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from fuzzcompile.compiler.recompiling import Position, Recompiled, recompiled
from fuzzcompile.errors import UsageError
from fuzzcompile.span import Span

_NOTE = "\0fuzzcompile: a probe was reached"
_Node = TypeVar("_Node", bound=ast.AST)
_Function = TypeVar("_Function", ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Probe:
    """A statement of a function, or a branch of an expression (``b`` in ``a and b``), that notes its execution.

    Attributes:
        span: its lines; of a statement with a body, those of the header.
        start: where it starts.
        end: where it ends, its body included.
    """

    span: Span
    start: Position
    end: Position


@dataclass
class Lines:
    """Probes in the functions that hold some lines.

    Attributes:
        probes: all of them, by number.
        reached: the numbers of those reached since the last :meth:`clear`.
        unwatched: functions and files that cannot be watched, and why.
    """

    probes: list[Probe] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)
    unwatched: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what was reached."""
        self.reached.clear()

    def executed(self) -> set[Span]:
        """The statements and branches reached since the last :meth:`clear`."""
        return {self.probes[number].span for number in self.reached}


@contextlib.contextmanager
def watching_lines(spans: Iterable[Span]) -> Iterator[Lines]:
    """Watch the statements that meet these spans until the block ends, in every thread.

    Only functions are watched: what runs on import alone has run. A file that is not imported yet is imported; one that
    cannot be imported or read is listed in `Lines.unwatched`.
    """
    lines, wanted = Lines(), set(spans)
    with contextlib.ExitStack() as undo:
        for file in sorted({span.file for span in wanted}):
            try:
                result = _probed(file, [span for span in wanted if span.file == file], lines)
            except UsageError as error:
                lines.unwatched.append(str(error))
                continue
            lines.unwatched += [f"{file}: {name} runs other code than the file's" for name in result.strangers]
            result.install()
            undo.callback(result.remove)
        yield lines


def _probed(file: str, wanted: list[Span], lines: Lines) -> Recompiled:
    probing = _Probing(lines.probes, file, wanted)
    return recompiled(file, probing.visit, {_NOTE: lines.reached.add})


class _Probing(ast.NodeTransformer):
    """Puts a probe before each wanted statement of a function, and into the branches of its expressions."""

    def __init__(self, probes: list[Probe], file: str, wanted: list[Span]) -> None:
        self.probes, self.file, self.wanted, self.depth = probes, file, wanted, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.depth:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [line for statement in block for line in self._noted(statement)])
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.visit(node.args)
        self.depth += 1
        node.body = self._branch(self.visit(node.body))
        self.depth -= 1
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        super().generic_visit(node)
        node.body, node.orelse = self._branch(node.body), self._branch(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        super().generic_visit(node)
        node.values[1:] = [self._branch(value) for value in node.values[1:]]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return node  # positions inside f-strings are wrong before Python 3.12

    def _function(self, node: _Function) -> _Function:
        for outer in (*node.decorator_list, node.args):  # they run where the function is defined
            self.visit(outer)
        self.depth += 1
        documented = int(ast.get_docstring(node, clean=False) is not None)
        visited: list[ast.stmt] = [self.visit(statement) for statement in node.body]
        node.body = visited[:documented]
        for statement in visited[documented:]:
            node.body += self._noted(statement)
        self.depth -= 1
        return node

    def _noted(self, statement: ast.stmt) -> list[ast.stmt]:
        note = self._note(statement, _header_end(statement))
        return [statement] if note is None else [_at(ast.Expr(note), statement), statement]

    def _branch(self, value: ast.expr) -> ast.expr:
        note = self._note(value, value.end_lineno or value.lineno) if self.depth else None
        return value if note is None else _at(ast.BoolOp(ast.Or(), [note, value]), value)

    def _note(self, node: ast.stmt | ast.expr, last: int) -> ast.expr | None:
        span = Span(self.file, node.lineno, last)
        if not any(span.meets(wanted) for wanted in self.wanted):
            return None
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        self.probes.append(Probe(span, (node.lineno, node.col_offset), end))
        called = ast.Call(_at(ast.Constant(_NOTE), node), [_at(ast.Constant(len(self.probes) - 1), node)], [])
        return _at(called, node)


def _header_end(statement: ast.stmt) -> int:
    """The last line of a statement without its body."""
    within: list[ast.stmt | ast.pattern] = [
        *getattr(statement, "body", []),
        *(case.pattern for case in getattr(statement, "cases", [])),
    ]
    if not within:
        return statement.end_lineno or statement.lineno
    return max(statement.lineno, within[0].lineno - 1)


def _at(node: _Node, place: ast.AST) -> _Node:
    return ast.copy_location(node, place)
