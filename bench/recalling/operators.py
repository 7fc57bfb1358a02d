"""Mutation operators: the mistakes that compiler code is likely to hold, as changes of its syntax tree.

Each operator gives, for a node, the nodes that may take its place. cosmic-ray and mutmut change text in files and have
no operator for a dropped guard or swapped operands, so the operators are written here.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from recalling.mutation import Mutation

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
_RELATED = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Calls whose operands may be exchanged without a change of meaning, or never sensibly.
_UNORDERED = {
    "min",
    "max",
    "isinstance",
    "issubclass",
    "getattr",
    "hasattr",
    "setattr",
    "cast",
    "zip",
    "print",
    "range",
}
# What only says something to a person or counts something: no program's meaning depends on it.
_TALK = {
    "counters", "log", "logger", "logging", "metrics", "print", "schedule_log", "signpost_event", "trace_structured",
    "warn", "warn_once", "warning_once", "warnings", "fusion_log", "perf_hint_log", "overlap_log", "CompileEventLogger",
    "dynamo_timed", "LazyString", "post_grad_graphs_log", "aot_graphs_log", "output_code_log", "inductor_metrics_log",
}  # fmt: skip

Operator = Callable[[ast.AST], Iterator[tuple[ast.AST, ast.AST | None]]]
"""From a node: pairs of what is replaced (the node or a part of it) and its replacement; None drops a statement."""


def negated(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A condition, negated."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, _negation(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, _negation(test)


def dropped_guard(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A guard (a condition that only leaves the function or the loop) that never or always holds; a lost condition."""
    if (
        isinstance(node, ast.If)
        and not node.orelse
        and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Raise)
    ):
        yield node.test, ast.Constant(False)
        if not isinstance(node.body[-1], ast.Raise):
            yield node.test, ast.Constant(True)
    if isinstance(node, ast.BoolOp):
        for number in range(len(node.values)):
            rest = [value for other, value in enumerate(node.values) if other != number]
            yield node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def comparison(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A comparison with its limit moved, or with the opposite answer."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, ast.Compare(node.left, [_SWAPPED[type(node.ops[0])]()], node.comparators)


def connective(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """``and`` and ``or`` exchanged; ``min`` and ``max``; ``any`` and ``all``."""
    if isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _RELATED:
        yield node.func, ast.Name(_RELATED[node.func.id], ast.Load())


def arithmetic(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Another arithmetic operator, or the operands of a difference or quotient swapped."""
    if not isinstance(node, ast.BinOp) or any(_is_text(side) for side in (node.left, node.right)):
        return
    if type(node.op) in _ARITHMETIC:
        yield node, ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
        yield node, ast.BinOp(node.right, node.op, node.left)


def swapped_operands(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Two neighbouring arguments of a call, exchanged."""
    if not isinstance(node, ast.Call) or name_of(node.func) in _UNORDERED:
        return
    for first in range(len(node.args) - 1):
        left, right = node.args[first : first + 2]
        if isinstance(left, ast.Starred) or isinstance(right, ast.Starred) or ast.dump(left) == ast.dump(right):
            continue
        arguments = [*node.args[:first], right, left, *node.args[first + 2 :]]
        yield node, ast.Call(node.func, arguments, node.keywords)


def constant(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A number off by one, a flag flipped, the last dimension replaced by the first."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        if type(node.operand.value) is int:
            yield node, ast.Constant(1 - node.operand.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, ast.Constant(node.value + 1)


def forgotten_argument(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A keyword of a call left out, or its last positional argument."""
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield node, ast.Call(node.func, node.args, [kept for kept in node.keywords if kept is not keyword])
    if len(node.args) > 1 and not isinstance(node.args[-1], ast.Starred) and name_of(node.func) not in _UNORDERED:
        yield node, ast.Call(node.func, node.args[:-1], node.keywords)


def dropped_statement(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """A call for its effect, an update or a ``continue`` left out."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name) for target in node.targets)
    if called or isinstance(node, ast.AugAssign | ast.Continue) or (stored and not _is_tuple(node)):
        yield node, None


OPERATORS: tuple[Operator, ...] = (
    negated, dropped_guard, comparison, connective, arithmetic, swapped_operands, constant, forgotten_argument,
    dropped_statement,
)  # fmt: skip


@dataclass
class Finder(ast.NodeVisitor):
    """Collects the mutations of a file: inside functions, and of what a program's meaning can depend on."""

    file: str
    found: list[Mutation] = field(default_factory=list)
    _scopes: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    _classes: list[str] = field(default_factory=list)

    def visit(self, node: ast.AST) -> None:
        """Collect what can be changed at this node and below it."""
        if isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise | ast.AnnAssign) or _talks(node):
            return  # AnnAssign: positions are right, but annotations are not evaluated in functions
        if self._scopes:
            self._collect(node)
        super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The methods of a class."""
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """The body of a function; its decorators and defaults ran when it was defined."""
        if not any(name_of(decorator) in ("overload", "contextmanager") for decorator in node.decorator_list):
            self._within(node.name, node, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """The body of a lambda."""
        self._within("<lambda>", node, [node.body])

    def _within(self, name: str, node: ast.FunctionDef | ast.Lambda, body: list[ast.stmt] | list[ast.expr]) -> None:
        outer = self._scopes[-1][0] if self._scopes else ".".join(self._classes)
        self._scopes.append((f"{outer}.{name}" if outer else name, (node.lineno, node.end_lineno or node.lineno)))
        for part in body:
            self.visit(part)
        self._scopes.pop()

    def _collect(self, node: ast.AST) -> None:
        function, lines = self._scopes[-1]
        for operator in OPERATORS:
            for old, new in operator(node):
                if not isinstance(old, ast.expr | ast.stmt) or old.end_lineno is None or old.end_col_offset is None:
                    continue
                start, end = (old.lineno, old.col_offset), (old.end_lineno, old.end_col_offset)
                before, after = ast.unparse(old), "" if new is None else _unparsed(new)
                if before != after:
                    self.found.append(
                        Mutation(self.file, function, lines, start, end, operator.__name__, before, after)
                    )


def mutations_of(file: str, tree: ast.Module) -> list[Mutation]:
    """All mutations of a file, in the order of its text."""
    finder = Finder(file)
    finder.visit(tree)
    return finder.found


def name_of(function: ast.AST) -> str:
    """The last part of a called or decorating name; empty for anything else."""
    if isinstance(function, ast.Call):
        return name_of(function.func)
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def _negation(test: ast.expr) -> ast.expr:
    return (
        test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else ast.UnaryOp(ast.Not(), test)
    )


def _unparsed(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).replace("\n", " ")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_tuple(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)


def _talks(node: ast.AST) -> bool:
    """Whether a statement or call only logs or counts, or the code of a message."""
    if isinstance(node, ast.Expr | ast.AugAssign):
        return _talks(node.value if isinstance(node, ast.Expr) else node.target)
    if isinstance(node, ast.Subscript):
        return _talks(node.value)
    if isinstance(node, ast.Call):
        return _talks(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr in _TALK or _talks(node.value)
    return isinstance(node, ast.Name) and node.id in _TALK
