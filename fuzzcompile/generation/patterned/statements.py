"""Edits of a program's lines: each is one assignment or one call, taken apart as a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fuzzcompile.generation.patterned.program import PatternProgram

Statements = tuple[str, ...]
Constant = bool | int | float


@dataclass(frozen=True)
class Place:
    """Something in a statement: the statement's place, and the number of the thing among those of its kind."""

    statement: int
    number: int


def constants_of(statements: Statements) -> Iterator[tuple[Place, Constant]]:
    """The numbers and truth values written out, with their places."""
    for at, statement in enumerate(statements):
        for number, node in enumerate(_constants(ast.parse(statement))):
            yield Place(at, number), ast.literal_eval(node)


def replaced(statements: Statements, place: Place, text: str) -> Statements:
    """The statements with another expression for a constant."""
    return _edited(statements, place, _constants, lambda node: text)


def swappable(statements: Statements) -> Iterator[Place]:
    """Calls and operations with two operands first, which can be swapped."""
    for at, statement in enumerate(statements):
        yield from (Place(at, number) for number, _ in enumerate(_binary(ast.parse(statement))))


def swapped(statements: Statements, place: Place) -> Statements:
    """The statements with the first two operands of a call swapped."""

    def swap(node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            node.left, node.right = node.right, node.left
        elif isinstance(node, ast.Call):
            node.args[0], node.args[1] = node.args[1], node.args[0]
        return ast.unparse(node)

    return _edited(statements, place, _binary, swap)


def operands_read(statements: Statements) -> Iterator[tuple[int, str]]:
    """The names that each statement reads, with its place, each once."""
    for at, statement in enumerate(statements):
        names = [node.id for node in ast.walk(ast.parse(statement)) if _is_read(node) and isinstance(node, ast.Name)]
        yield from ((at, name) for name in dict.fromkeys(names))


def place_of(statements: Statements, statement: int) -> int | None:
    """Return the position of a statement; None if an earlier edit left fewer statements."""
    return statement if statement < len(statements) else None


def wrapped(statements: Statements, statement: int, name: str, expression: str) -> Statements:
    """The statements with ``expression`` in the place of what one of them reads by ``name``."""

    class Wrap(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            is_same = node.id == name and isinstance(node.ctx, ast.Load)
            return ast.parse(f"({expression})", mode="eval").body if is_same else node

    text = ast.unparse(Wrap().visit(ast.parse(statements[statement])))
    return (*statements[:statement], text, *statements[statement + 1 :])


def inserted(statements: Statements, at: int, line: str) -> Statements:
    """The statements with one more."""
    return (*statements[:at], line, *statements[at:])


def results_of(statements: Statements) -> list[str]:
    """The names that the statements assign, in order."""
    names = [
        node.targets[0]
        for statement in statements
        for node in ast.parse(statement).body
        if isinstance(node, ast.Assign)
    ]
    return [name.id for name in names if isinstance(name, ast.Name)]


def also_returned(program: PatternProgram, name: str) -> PatternProgram:
    """The program with one more result."""
    return replace(program, returns=(*program.returns, name))


def _edited(
    statements: Statements,
    place: Place,
    kind: Callable[[ast.AST], Iterator[ast.expr]],
    edit: Callable[[ast.expr], str],
) -> Statements:
    """The statements with what ``edit`` makes of one expression of a kind in its place."""
    if place.statement >= len(statements):
        return statements
    tree = ast.parse(statements[place.statement])
    nodes = list(kind(tree))
    if place.number >= len(nodes):
        return statements
    chosen = nodes[place.number]
    text = edit(chosen)

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.parse(text, mode="eval").body if node is chosen else self.generic_visit(node)

    line = ast.unparse(Put().visit(tree))
    return (*statements[: place.statement], line, *statements[place.statement + 1 :])


def _constants(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and _is_number(node.operand if isinstance(node, ast.UnaryOp) else node):
            yield node


def _binary(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and len(node.args) > 1):
            yield node


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float))


def _is_read(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id[:1] in "xt" and node.id[1:2].isdigit()
    )
