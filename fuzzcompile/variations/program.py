"""Operators on the text of a program: near misses of it, made by replacing pieces of its source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Functions of a case file that are not part of the program.
_NOT_VARIED = ("make", "run")
_AXIS_CALLS = ("softmax", "log_softmax", "sum", "mean", "amax", "amin", "cumsum", "argmax", "norm", "var", "std")
_AXES = (-1, -2, 0, 1, -3)
_CONSTANTS = ("0.0", "1.0", "-1.0")


@dataclass(frozen=True)
class Edit:
    """A piece of source (offsets in characters) and its replacement; ``name`` is that of the operator."""

    name: str
    start: int
    end: int
    text: str


def edits_of(source: str) -> list[Edit]:
    """Every single edit that some operator can make to the functions and methods of the program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    text = _Text(source)
    edits = (edit for node in _program_nodes(tree) for operator in _OPERATORS for edit in operator(node, text))
    return list(dict.fromkeys(edits))


def edited(source: str, edit: Edit) -> str:
    """The source with one edit made."""
    return source[: edit.start] + edit.text + source[edit.end :]


class _Text:
    """Source by offset: ``ast`` counts lines, and bytes within them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node."""
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.source[start:end]

    def replace(self, name: str, node: ast.expr | ast.stmt, text: str) -> Edit:
        """An edit of a whole node."""
        return Edit(name, *self.span(node), text)

    def _offset(self, line: int, column: int) -> int:
        prefix = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)


def _program_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes inside functions and methods, except constructors and functions that only drive the case."""
    for statement in tree.body:
        functions = [statement] if isinstance(statement, ast.FunctionDef) else []
        if isinstance(statement, ast.ClassDef):
            functions = [inner for inner in statement.body if isinstance(inner, ast.FunctionDef)]
        for function in functions:
            if function.name not in _NOT_VARIED and not function.name.startswith("__init"):
                yield function
                for inner in function.body:
                    yield from ast.walk(inner)


def _axis(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """Another axis."""
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    axes = [keyword.value for keyword in node.keywords if keyword.arg in ("dim", "axis")]
    axes += [argument for argument in node.args if name in _AXIS_CALLS and _whole(argument) is not None]
    for axis in axes:
        present = _whole(axis)
        if present is not None:
            yield from (text.replace("axis", axis, str(wanted)) for wanted in _AXES if wanted != present)


def _constant(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """A factor, divisor or summand that is 0, 1 or -1."""
    for operand in _literal_operands(node):
        yield from (text.replace("constant", operand, constant) for constant in _CONSTANTS)


def _scalar_tensor(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """A number given as a tensor without dimensions, or with one of size one."""
    for operand in _literal_operands(node):
        yield text.replace("scalar_as_tensor", operand, f"torch.tensor({text.of(operand)})")
        yield text.replace("scalar_as_tensor", operand, f"torch.tensor([{text.of(operand)}])")


def _swap(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """Operands swapped."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        sign = "+" if isinstance(node.op, ast.Add) else "*"
        yield text.replace("swapped", node, f"({text.of(node.right)}) {sign} ({text.of(node.left)})")


def _reciprocal(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """A division written as a multiplication, and the reverse."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
        sign = "*" if isinstance(node.op, ast.Div) else "/"
        yield text.replace("reciprocal", node, f"({text.of(node.left)}) {sign} (1.0 / ({text.of(node.right)}))")


def _layout(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """A copy after a change of layout, or none where there was one."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in ("transpose", "permute", "view", "reshape", "expand", "unflatten", "flatten"):
        yield text.replace("contiguous", node, f"{text.of(node)}.contiguous()")
    if node.func.attr == "contiguous":
        yield text.replace("not_contiguous", node, text.of(node.func.value))


def _permuted(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """Two axes of a permutation exchanged."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "permute":
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        if _whole(left) is not None and _whole(right) is not None:
            start, end = text.span(left)[0], text.span(right)[1]
            yield Edit("permuted", start, end, f"{text.of(right)}, {text.of(left)}")


def _in_place(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """``x = x + y`` as ``x += y``, which also changes aliases of ``x``."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return
    value, name = node.value, node.targets[0].id
    signs = {ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/="}
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name) and value.left.id == name:
        sign = signs.get(type(value.op))
        if sign is not None:
            yield text.replace("in_place", node, f"{name} {sign} {text.of(value.right)}")


def _also_returned(node: ast.AST, text: _Text) -> Iterator[Edit]:
    """An intermediate value that is returned as well, and so has another user."""
    if not isinstance(node, ast.FunctionDef):
        return
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None or isinstance(last.value, ast.Tuple):
        return
    for statement in node.body[:-1]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield text.replace("also_returned", last, f"return {text.of(last.value)}, {statement.targets[0].id}")


def _literal_operands(node: ast.AST) -> list[ast.expr]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        return []
    sides = (node.left, node.right)
    return [side for side in sides if isinstance(side, ast.Constant) and type(side.value) in (int, float)]


def _whole(node: ast.expr) -> int | None:
    """The value of a whole number that is written out."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


_OPERATORS: tuple[Callable[[ast.AST, _Text], Iterator[Edit]], ...] = (
    _axis,
    _constant,
    _scalar_tensor,
    _swap,
    _reciprocal,
    _layout,
    _permuted,
    _in_place,
    _also_returned,
)
