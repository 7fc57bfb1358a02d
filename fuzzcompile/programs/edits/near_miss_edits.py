"""Near misses of pattern programs: the edits of each kind, and cases drawn with them at random."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fuzzcompile.programs.edits.pattern_program import (
    Argument,
    GradMode,
    Operand,
    PatternEdit,
    PatternProgram,
    render_pattern_program,
)
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES, InputLayout

__all__ = ["Operand", "PatternCase", "PatternEdit", "PatternProgram", "draw_near_miss", "render_pattern_program"]


# Edits of a program's lines: each is one assignment or one call, taken apart as a syntax tree.

Statements = tuple[str, ...]
Constant = bool | int | float


@dataclass(frozen=True)
class StatementPlace:
    """Something in a statement: the statement's place, and the number of the thing among those of its kind."""

    statement: int
    number: int


def locate_constants(statements: Statements) -> Iterator[tuple[StatementPlace, Constant]]:
    """The numbers and truth values written out, with their places."""
    for at, statement in enumerate(statements):
        for number, node in enumerate(_walk_constants(ast.parse(statement))):
            yield StatementPlace(at, number), ast.literal_eval(node)


def replace_constant(statements: Statements, place: StatementPlace, text: str) -> Statements:
    """The statements with another expression for a constant."""
    return _edit_expression(statements, place, _walk_constants, lambda node: text)


def locate_swappable(statements: Statements) -> Iterator[StatementPlace]:
    """Calls and operations with two operands first, which can be swapped."""
    for at, statement in enumerate(statements):
        yield from (StatementPlace(at, number) for number, _ in enumerate(_walk_binary(ast.parse(statement))))


def swap_operands(statements: Statements, place: StatementPlace) -> Statements:
    """The statements with the first two operands of a call swapped."""

    def swap(node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            node.left, node.right = node.right, node.left
        elif isinstance(node, ast.Call):
            node.args[0], node.args[1] = node.args[1], node.args[0]
        return ast.unparse(node)

    return _edit_expression(statements, place, _walk_binary, swap)


def locate_operands(statements: Statements) -> Iterator[tuple[int, str]]:
    """The names that each statement reads, with its place, each once."""
    for at, statement in enumerate(statements):
        names = [node.id for node in ast.walk(ast.parse(statement)) if _is_read(node) and isinstance(node, ast.Name)]
        yield from ((at, name) for name in dict.fromkeys(names))


def find_statement(statements: Statements, statement: int) -> int | None:
    """Return the position of a statement; None if an earlier edit left fewer statements."""
    return statement if statement < len(statements) else None


def wrap_operand(statements: Statements, statement: int, name: str, expression: str) -> Statements:
    """The statements with ``expression`` in the place of what one of them reads by ``name``."""

    class Wrap(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            is_same = node.id == name and isinstance(node.ctx, ast.Load)
            return ast.parse(f"({expression})", mode="eval").body if is_same else node

    text = ast.unparse(Wrap().visit(ast.parse(statements[statement])))
    return (*statements[:statement], text, *statements[statement + 1 :])


def insert_statement(statements: Statements, at: int, line: str) -> Statements:
    """The statements with one more."""
    return (*statements[:at], line, *statements[at:])


def list_results(statements: Statements) -> list[str]:
    """The names that the statements assign, in order."""
    names = [
        node.targets[0]
        for statement in statements
        for node in ast.parse(statement).body
        if isinstance(node, ast.Assign)
    ]
    return [name.id for name in names if isinstance(name, ast.Name)]


def add_return(program: PatternProgram, name: str) -> PatternProgram:
    """The program with one more result."""
    return replace(program, returns=(*program.returns, name))


def _edit_expression(
    statements: Statements,
    place: StatementPlace,
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


def _walk_constants(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and _is_number(node.operand if isinstance(node, ast.UnaryOp) else node):
            yield node


def _walk_binary(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and len(node.args) > 1):
            yield node


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float))


def _is_read(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id[:1] in "xt" and node.id[1:2].isdigit()
    )


_SIZES = (0, 1, 2, 3, 7, 16, 17)
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_INTEGERS = ("int64", "int32", "int8", "uint8", "bool")
# Between two operators of a pattern: another operator, which leaves most values as they are.
_BETWEEN = {
    "cast": "{x}.to(torch.float64).to({x}.dtype)",
    "rounded": "{x}.to(torch.bfloat16).to({x}.dtype)",
    "negated": "-{x}",
    "copied": "{x}.clone()",
    "viewed": "{x}.reshape({x}.shape)",
    "flattened": "{x}.flatten().reshape({x}.shape)",
    "restrided": "{x}.transpose(0, -1).contiguous().transpose(0, -1)",
    "scaled": "{x} * 0.5",
    "detached": "{x}.detach()",
}
_WRITES = ("{x}.add_(1)", "{x}.mul_(2)", "{x}.zero_()", "{x}.neg_()")
_POINTWISE = ("torch.relu({x})", "torch.sigmoid({x})", "{x} + 1", "{x} * {x}", "torch.abs({x})", "{x}.sum(-1)")


@dataclass(frozen=True)
class EditKind:
    """One kind: the arguments of the edits that it can make, and how one is made (None: not any more)."""

    arguments: Callable[[PatternProgram], Iterator[tuple[Argument, ...]]]
    apply: Callable[..., PatternProgram | None]


def list_edits(program: PatternProgram) -> list[PatternEdit]:
    """Every edit that some kind can make to a program; not all of them leave one that runs."""
    return [PatternEdit(name, arguments) for name, kind in KINDS.items() for arguments in kind.arguments(program)]


def apply_edit(program: PatternProgram, edit: PatternEdit) -> PatternProgram | None:
    """The program with the edit made; None where an earlier edit left nothing for it."""
    edited = KINDS[edit.name].apply(program, *edit.arguments)
    return None if edited is None else replace(edited, edited=(*program.edited, edit.name))


def with_operand(program: PatternProgram, name: str, **changes: object) -> PatternProgram:
    """The program with an operand changed."""
    operands = tuple(
        replace(operand, **changes) if operand.name == name else operand  # type: ignore[arg-type]
        for operand in program.operands
    )
    return replace(program, operands=operands)


# -- sizes ------------------------------------------------------------------------------------------


def _list_resizings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Every size becomes another, in shapes and in the numbers of the statements."""
    present = sorted({size for operand in program.operands for size in operand.shape})
    for size in present:
        yield from ((size, wanted) for wanted in dict.fromkeys((*_SIZES, *present)) if wanted != size)


def _resize(program: PatternProgram, size: int, wanted: int) -> PatternProgram | None:
    operands = tuple(
        replace(operand, shape=tuple(wanted if length == size else length for length in operand.shape))
        for operand in program.operands
    )
    if operands == program.operands:
        return None
    statements = program.statements
    for place, value in locate_constants(statements):
        if value == size and size > 2:  # smaller numbers are dimensions and steps as often as sizes
            statements = replace_constant(statements, place, str(wanted))
    return replace(program, operands=operands, statements=statements)


def _list_dimensions(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One dimension of one operand is 1 (it broadcasts) or 0."""
    for operand in program.operands:
        for dimension, size in enumerate(operand.shape):
            yield from ((operand.name, dimension, wanted) for wanted in (1, 0) if wanted != size)


def _change_dimension(program: PatternProgram, name: str, dimension: int, size: int) -> PatternProgram | None:
    shape = program.find_operand(name).shape
    if dimension >= len(shape):
        return None
    return with_operand(program, name, shape=(*shape[:dimension], size, *shape[dimension + 1 :]))


def _list_ranks(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An operand has a dimension more in front, or one less."""
    for operand in program.operands:
        yield from ((operand.name, more) for more in ((1, -1) if operand.shape else (1,)))


def _change_rank(program: PatternProgram, name: str, more: int) -> PatternProgram | None:
    shape = program.find_operand(name).shape
    if more < 0 and not shape:
        return None
    return with_operand(program, name, shape=(2, *shape) if more > 0 else shape[1:], layout=None)


# -- dtypes, layouts, values, memory ----------------------------------------------------------------


def _list_mixed_dtypes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One operand has another dtype than the others."""
    for operand in program.operands:
        dtypes = _DTYPES + _INTEGERS if operand.floating else _INTEGERS
        yield from ((operand.name, dtype) for dtype in dtypes if dtype != operand.dtype)


def _with_dtype(program: PatternProgram, name: str, dtype: str) -> PatternProgram:
    return with_operand(program, name, dtype=dtype, values=None)


def _list_dtypes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """All floating operands have another dtype."""
    present = {operand.dtype for operand in program.operands if operand.floating}
    yield from ((dtype,) for dtype in _DTYPES if present and present != {dtype})


def _cast(program: PatternProgram, dtype: str) -> PatternProgram:
    operands = tuple(replace(operand, dtype=dtype) if operand.floating else operand for operand in program.operands)
    return replace(program, operands=operands)


def _list_layouts(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    for operand in program.operands:
        yield from ((operand.name, name) for name, layout in LAYOUTS.items() if len(operand.shape) in layout.ranks)


def _change_layout(program: PatternProgram, name: str, layout: InputLayout) -> PatternProgram | None:
    shape = program.find_operand(name).shape
    fits = len(shape) in LAYOUTS[layout].ranks and 0 not in shape
    return with_operand(program, name, layout=layout) if fits else None


def _list_values(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    for operand in program.operands:
        if operand.floating:
            yield from ((operand.name, name) for name in VALUES)


def _change_values(program: PatternProgram, name: str, values: str) -> PatternProgram | None:
    operand = program.find_operand(name)
    return with_operand(program, name, values=values) if operand.floating and 0 not in operand.shape else None


def _list_input_pairs(program: PatternProgram) -> Iterator[tuple[Operand, Operand]]:
    """Inputs of one shape and dtype."""
    inputs = [operand for operand in program.operands if operand.role == "input" and operand.same_as is None]
    for at, first in enumerate(inputs):
        yield from ((first, second) for second in inputs[at + 1 :])


def _list_aliases(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One tensor is passed for two inputs; or a view of it is."""
    for first, second in _list_input_pairs(program):
        if (first.shape, first.dtype) == (second.shape, second.dtype):
            yield first.name, second.name, ""
        elif first.dtype == second.dtype and first.shape[::-1] == second.shape and len(first.shape) == 2:
            yield first.name, second.name, ".t()"


def _alias(program: PatternProgram, first: str, second: str, view: str) -> PatternProgram | None:
    a, b = program.find_operand(first), program.find_operand(second)
    if a.dtype != b.dtype or (a.shape[::-1] if view else a.shape) != b.shape or a.same_as is not None:
        return None
    return with_operand(program, second, same_as=first + view)


def _list_roles(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An input that the module holds, or a weight that is passed in."""
    for operand in program.operands:
        yield from ((operand.name, role) for role in ("input", "parameter", "buffer") if role != operand.role)


def _change_role(program: PatternProgram, name: str, role: str) -> PatternProgram | None:
    aliased = {(operand.same_as or "").split(".")[0] for operand in program.operands}
    inputs = [operand.name for operand in program.operands if operand.role == "input"]
    if program.find_operand(name).same_as is not None or name in aliased or (role != "input" and inputs == [name]):
        return None
    return with_operand(program, name, role=role)


# -- the statements ---------------------------------------------------------------------------------


def _list_constant_edits(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A number of the pattern is another: a scale, a dimension, an alpha, a sign; True for False."""
    for place, value in locate_constants(program.statements):
        for wanted in _other_constants(value):
            yield place.statement, place.number, wanted


def _other_constants(value: bool | int | float | None) -> tuple[bool | int | float, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return tuple(dict.fromkeys(v for v in (0, 1, -1, -2, value + 1, value - 1, -value) if v != value))
    if isinstance(value, float):
        return tuple(dict.fromkeys(v for v in (0.0, 1.0, -1.0, -value, 2 * value, 1e-6) if v != value))
    return ()


def _change_constant(program: PatternProgram, statement: int, number: int, value: Argument) -> PatternProgram | None:
    statements = replace_constant(program.statements, StatementPlace(statement, number), repr(value))
    return None if statements == program.statements else replace(program, statements=statements)


def _list_users(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A result within the pattern has a second user: it is returned as well."""
    yield from ((name,) for name in list_results(program.statements) if name not in program.returns)


def _return_result(program: PatternProgram, name: str) -> PatternProgram | None:
    return None if name in program.returns else add_return(program, name)


def _list_swaps(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Two arguments of a call change places."""
    yield from ((place.statement, place.number) for place in locate_swappable(program.statements))


def _swap_arguments(program: PatternProgram, statement: int, number: int) -> PatternProgram | None:
    statements = swap_operands(program.statements, StatementPlace(statement, number))
    return None if statements == program.statements else replace(program, statements=statements)


def _list_betweens(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Something stands between two operators of the pattern, or before it."""
    for statement, name in locate_operands(program.statements):
        yield from ((statement, name, between) for between in _BETWEEN)


def _insert_between(program: PatternProgram, statement: int, name: str, between: str) -> PatternProgram | None:
    at = find_statement(program.statements, statement)
    if at is None:
        return None
    return replace(program, statements=wrap_operand(program.statements, at, name, _BETWEEN[between].format(x=name)))


def _list_writes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An input is written to, before the pattern or behind it."""
    for operand in program.operands:
        if operand.role == "input" and operand.floating:
            yield from ((operand.name, write, at) for write in _WRITES for at in ("before", "after"))


def _insert_write(program: PatternProgram, name: str, write: str, at: str) -> PatternProgram:
    index = 0 if at == "before" else len(program.statements)
    return replace(program, statements=insert_statement(program.statements, index, write.format(x=name)))


def _list_following(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A result goes through a pointwise operator or a sum, and is returned in its place."""
    yield from ((name, after) for name in program.returns for after in _POINTWISE)


def _append_operation(program: PatternProgram, name: str, after: str) -> PatternProgram | None:
    if name not in program.returns:
        return None
    result = f"{name}_after"
    statements = (*program.statements, f"{result} = {after.format(x=name)}")
    return replace(program, statements=statements, returns=tuple(result if r == name else r for r in program.returns))


# -- how it is compiled -----------------------------------------------------------------------------


def _list_grad_modes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    modes: tuple[GradMode, ...] = ("no_grad", "inference_mode", "enabled")
    yield from ((mode,) for mode in modes if program.backward or mode != program.grad)


def _change_grad_mode(program: PatternProgram, mode: GradMode) -> PatternProgram:
    return replace(program, grad=mode, backward=False)


def _list_backwards(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if not program.backward and "freezing" not in program.settings and any(o.floating for o in program.operands):
        yield ()


def _list_dynamics(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if program.dynamic is None:
        yield ()


def _list_freezings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if "freezing" not in program.settings and not program.backward:
        yield ()


def _freeze(program: PatternProgram) -> PatternProgram | None:
    """Weights are constants of the graph: every input but the first is one."""
    if program.backward or any(operand.same_as for operand in program.operands):
        return None
    operands = tuple(replace(o, role="parameter" if at else o.role) for at, o in enumerate(program.operands))
    return replace(program, operands=operands, settings={**program.settings, "freezing": True}, grad="no_grad")


KINDS: dict[str, EditKind] = {
    "size": EditKind(_list_resizings, _resize),
    "broadcast": EditKind(_list_dimensions, _change_dimension),
    "rank": EditKind(_list_ranks, _change_rank),
    "dtype": EditKind(_list_dtypes, _cast),
    "mixed_dtypes": EditKind(_list_mixed_dtypes, _with_dtype),
    "layout": EditKind(_list_layouts, _change_layout),
    "values": EditKind(_list_values, _change_values),
    "aliased": EditKind(_list_aliases, _alias),
    "role": EditKind(_list_roles, _change_role),
    "constant": EditKind(_list_constant_edits, _change_constant),
    "second_user": EditKind(_list_users, _return_result),
    "swapped": EditKind(_list_swaps, _swap_arguments),
    "between": EditKind(_list_betweens, _insert_between),
    "written": EditKind(_list_writes, _insert_write),
    "followed": EditKind(_list_following, _append_operation),
    "grad_mode": EditKind(_list_grad_modes, _change_grad_mode),
    "backward": EditKind(_list_backwards, lambda program: replace(program, backward=True)),
    "dynamic": EditKind(_list_dynamics, lambda program: replace(program, dynamic=True)),
    "freezing": EditKind(_list_freezings, _freeze),
}
"""Every kind of near miss, by the name that findings and reports give it."""


# Near misses of a pattern program, drawn at random.

_MOST_EDITS = 3
# Of the cases of a program, the share that is the program itself: its own numbers, at other values.
_UNCHANGED = 0.1


@dataclass(frozen=True)
class PatternCase:
    """A case file drawn of a program, and the names of the near misses in it (none: the program itself)."""

    source: str
    operators: tuple[str, ...]


def draw_near_miss(program: PatternProgram, rng: random.Random) -> PatternCase:
    """Draw a near miss of a program: up to three edits of different kinds; equal states of ``rng`` give equal cases.

    Each edit alone leaves a program that runs in eager mode; several together may not.
    """
    wanted = 0 if rng.random() < _UNCHANGED else rng.choice(range(1, _MOST_EDITS + 1))
    kinds = sorted({edit.name for edit in program.edits})
    edited = program
    for kind in rng.sample(kinds, min(wanted, len(kinds))):
        edit = rng.choice([edit for edit in program.edits if edit.name == kind])
        edited = apply_edit(edited, edit) or edited
    return PatternCase(render_pattern_program(edited), edited.edited)
