"""A program made for one rule of the compiler, as plain data and as a case file, and its near misses.

The process that draws near misses has no torch, so that a program's statements are lines of Python here, each one
assignment or one call, and edited as syntax trees.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from fuzzcompile.model.package_files import get_template
from fuzzcompile.programs.edits.tensor_values import (
    LAYOUTS,
    VALUES,
    InputLayout,
    fill_expression,
    find_functions,
    format_tuple,
)
from fuzzcompile.programs.ir.case_text import put_value

Argument = str | int | float | bool


@dataclass(frozen=True)
class PatternEdit:
    """One near miss, to be made on a program that may have been edited before: its kind (`KINDS`), where, and how."""

    name: str
    arguments: tuple[Argument, ...] = ()


# A program made for one rule of the compiler, as plain data that a worker sends to the campaign's process.

Role = Literal["input", "parameter", "buffer"]
# How a program was derived from its rule.
Origin = Literal["search function", "pattern", "pass", "operator"]
GradMode = Literal["no_grad", "inference_mode", "enabled"]


@dataclass(frozen=True)
class Operand:
    """A tensor that a program takes, by its name in the statements.

    Its ``role``: it is passed in, or the module holds it (what freezing makes a constant). Integer values lie from 0 to
    below ``high``. ``layout`` and ``values`` are keys of `fuzzcompile.programs.edits.tensor_values`; ``strides`` are
    those where no layout says them (None: contiguous). ``same_as`` is the operand that it is, or a view of. Of a
    ``trainable`` one a backward computes the gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = "input"
    high: int = 2
    layout: InputLayout | None = None
    values: str | None = None
    strides: tuple[int, ...] | None = None
    same_as: str | None = None
    trainable: bool = True

    @property
    def floating(self) -> bool:
        """True if its values are real numbers that can have a gradient."""
        return self.dtype.startswith(("float", "bfloat")) and not self.dtype.startswith("float8")


@dataclass(frozen=True)
class PatternProgram:
    """A program that makes a rule fire, or is made to.

    ``rule`` is the name that a ledger and ``coverage --rules`` give it, ``pass_name`` the pass that runs it.
    ``statements`` are lines of Python over the operands' names, ``torch`` and ``F``; ``returns`` are the names
    that are returned. The rule runs under the entries ``settings`` of ``torch._inductor.config``; without those of
    ``dynamo`` no graph has what it looks for. It ``fires`` if it did in a compile of this program (None: not tried).
    ``edits`` are the near misses that each, alone, leave a program that runs in eager; ``edited`` names those made.
    """

    stage: str
    rule: str
    pass_name: str | None
    origin: Origin
    operands: tuple[Operand, ...]
    statements: tuple[str, ...]
    returns: tuple[str, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    dynamo: Mapping[str, object] = field(default_factory=dict)
    grad: GradMode = "no_grad"
    backward: bool = False
    dynamic: bool | None = None
    fires: bool | None = None
    edits: tuple[PatternEdit, ...] = ()
    edited: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``stage:rule``."""
        return f"{self.stage}:{self.rule}"


# Modules that register the operators of a namespace when they are imported.
_REGISTERED_BY = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
# Read while dynamo traces, so that they have to be in force around everything.
_READ_EARLY = "freezing"


def render_pattern_program(program: PatternProgram) -> str:
    """The source of a case file that needs torch alone."""
    made = [(operand, _render_operand(operand)) for operand in program.operands]
    body = "\n".join(program.statements)
    text = get_template("pattern_case.py.j2").render(
        program=program,
        imports=[module for namespace, module in _REGISTERED_BY.items() if f"torch.ops.{namespace}." in body],
        settings=list(_list_pattern_settings(program)),
        functions=find_functions([expression for _, expression in made]),
        held=[(operand, expression) for operand, expression in made if operand.role != "input"],
        inputs=[(operand, expression) for operand, expression in made if operand.role == "input"],
        arguments=", ".join(operand.name for operand in program.operands if operand.role == "input"),
    )
    return text.rstrip() + "\n"


def _list_pattern_settings(program: PatternProgram) -> Iterator[tuple[str, str]]:
    early = _READ_EARLY in program.settings
    around = {"inductor": program.settings if early else {}, "dynamo": program.dynamo}
    config = {name: dict(entries) for name, entries in around.items() if entries}
    yield "GRAD", repr("enabled" if program.backward else program.grad)
    if program.backward:
        yield "BACKWARD", "True"
    if program.settings and not early:
        yield "OPTIONS", _render_literal(program.settings)
    if config:
        yield "CONFIG", _render_literal(config)
    if program.dynamic is not None:
        yield "DYNAMIC", repr(program.dynamic)


def _render_literal(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_render_literal(inner)}' for key, inner in value.items()) + "}"
    return repr(value)


def _render_operand(operand: Operand) -> str:
    if operand.same_as is not None:
        return operand.same_as
    if operand.layout is None and operand.strides is not None and len(operand.strides) == len(operand.shape):
        reach = 1 + sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
        sizes = f"{format_tuple(operand.shape)}, {format_tuple(operand.strides)}"
        return f"{_render_values(operand, (max(reach, 1),))}.as_strided({sizes})"
    if operand.layout is None:
        return _render_values(operand, operand.shape)
    layout = LAYOUTS[operand.layout]
    return _render_values(operand, layout.base(operand.shape)) + layout.view.format(shape=format_tuple(operand.shape))


def _render_values(operand: Operand, shape: tuple[int, ...]) -> str:
    size, dtype = format_tuple(shape), operand.dtype
    if dtype == "bool":
        return f"(torch.rand({size}) > 0.5)"
    if dtype.startswith(("int", "uint")):
        return f"torch.randint(0, {operand.high}, {size}, dtype=torch.{dtype})"
    if dtype.startswith("float8"):
        return f"torch.randn({size}).to(torch.{dtype})"
    option = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    x = f"torch.randn({size}{option})"
    if operand.values is None:
        return x
    values = fill_expression(operand.values, x, x, shape=size, like=f"torch.{dtype}", option=option, dtype=dtype)
    return f"({values})"


# Near misses: the edits of each kind.

Edits = Iterator[tuple[tuple[Argument, ...], PatternProgram]]

_SIZES = (0, 1, 2, 3, 7, 16, 17)
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_INTEGERS = ("int64", "int32", "int8", "uint8", "bool")
_ROLES: tuple[Role, ...] = ("input", "parameter", "buffer")
_GRAD_MODES: tuple[GradMode, ...] = ("no_grad", "inference_mode", "enabled")
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


def list_edits(program: PatternProgram) -> list[PatternEdit]:
    """Every edit that some kind can make to a program; not all of them leave one that runs."""
    return [PatternEdit(name, arguments) for name, kind in KINDS.items() for arguments, _ in kind(program)]


def apply_edit(program: PatternProgram, edit: PatternEdit) -> PatternProgram | None:
    """The program with the edit made; None where an earlier edit left nothing for it."""
    edited = next((edited for where, edited in KINDS[edit.name](program) if where == edit.arguments), None)
    return None if edited is None else replace(edited, edited=(*program.edited, edit.name))


def _with(program: PatternProgram, changed: Operand) -> PatternProgram:
    operands = tuple(changed if operand.name == changed.name else operand for operand in program.operands)
    return replace(program, operands=operands)


# -- operands ---------------------------------------------------------------------------------------


def _resize(program: PatternProgram) -> Edits:
    """Every size becomes another, in shapes and in the numbers of the statements."""
    present = sorted({size for operand in program.operands for size in operand.shape})
    for size in present:
        for wanted in dict.fromkeys((*_SIZES, *present)):
            if wanted != size:
                shapes = (tuple(wanted if n == size else n for n in operand.shape) for operand in program.operands)
                operands = tuple(replace(o, shape=shape) for o, shape in zip(program.operands, shapes, strict=True))
                # Smaller numbers are dimensions and steps as often as sizes.
                lines = (
                    program.statements if size <= 2 else [_replace_number(s, size, wanted) for s in program.statements]
                )
                yield (size, wanted), replace(program, operands=operands, statements=tuple(lines))


def _replace_number(statement: str, number: int, wanted: int) -> str:
    tree = ast.parse(statement)
    places = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == number]
    for node in places:
        node.value = wanted
    return ast.unparse(tree) if places else statement


def _broadcast(program: PatternProgram) -> Edits:
    """One dimension of one operand is 1 (it broadcasts) or 0."""
    for operand in program.operands:
        for dimension, size in enumerate(operand.shape):
            for wanted in (1, 0):
                if wanted != size:
                    shape = (*operand.shape[:dimension], wanted, *operand.shape[dimension + 1 :])
                    yield (operand.name, dimension, wanted), _with(program, replace(operand, shape=shape))


def _change_rank(program: PatternProgram) -> Edits:
    """An operand has a dimension more in front, or one less."""
    for operand in program.operands:
        yield (operand.name, 1), _with(program, replace(operand, shape=(2, *operand.shape), layout=None))
        if operand.shape:
            yield (operand.name, -1), _with(program, replace(operand, shape=operand.shape[1:], layout=None))


def _change_dtypes(program: PatternProgram) -> Edits:
    present = {operand.dtype for operand in program.operands if operand.floating}
    for dtype in _DTYPES:
        if present and present != {dtype}:
            cast = tuple(replace(o, dtype=dtype) if o.floating else o for o in program.operands)
            yield (dtype,), replace(program, operands=cast)


def _mix_dtypes(program: PatternProgram) -> Edits:
    for operand in program.operands:
        for dtype in _DTYPES + _INTEGERS if operand.floating else _INTEGERS:
            if dtype != operand.dtype:
                yield (operand.name, dtype), _with(program, replace(operand, dtype=dtype, values=None))


def _change_layout(program: PatternProgram) -> Edits:
    for operand in program.operands:
        for name, layout in LAYOUTS.items():
            if len(operand.shape) in layout.ranks and 0 not in operand.shape:
                yield (operand.name, name), _with(program, replace(operand, layout=name))


def _change_values(program: PatternProgram) -> Edits:
    for operand in program.operands:
        if operand.floating and 0 not in operand.shape:
            yield from (((operand.name, name), _with(program, replace(operand, values=name))) for name in VALUES)


def _alias(program: PatternProgram) -> Edits:
    """One tensor is passed for two inputs; or a view of it is."""
    inputs = [operand for operand in program.operands if operand.role == "input" and operand.same_as is None]
    for at, first in enumerate(inputs):
        for second in inputs[at + 1 :]:
            alike = first.dtype == second.dtype
            turned = len(first.shape) == 2 and first.shape[::-1] == second.shape
            view = "" if first.shape == second.shape else ".t()" if turned else None
            if alike and view is not None:
                aliased = replace(second, same_as=first.name + view)
                yield (first.name, second.name, view), _with(program, aliased)


def _change_role(program: PatternProgram) -> Edits:
    """An input that the module holds, or a weight that is passed in."""
    aliased = {(operand.same_as or "").split(".")[0] for operand in program.operands}
    inputs = [operand.name for operand in program.operands if operand.role == "input"]
    for operand in program.operands:
        if operand.same_as is None and operand.name not in aliased and inputs != [operand.name]:
            for role in _ROLES:
                if role != operand.role:
                    yield (operand.name, role), _with(program, replace(operand, role=role))


# -- statements -------------------------------------------------------------------------------------


def _find(
    program: PatternProgram, is_wanted: Callable[[ast.AST], bool]
) -> Iterator[tuple[int, int, ast.expr, ast.AST]]:
    """Expressions of a kind: the place of the statement, the number in it, and the expression in a tree of its own."""
    for at, statement in enumerate(program.statements):
        for number in itertools.count():
            tree = ast.parse(statement)
            found = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and is_wanted(node)]
            if number >= len(found):
                break
            yield at, number, found[number], tree


def _is_constant(node: ast.AST) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, (bool, int, float))


def _put_line(program: PatternProgram, at: int, line: str) -> PatternProgram:
    return replace(program, statements=(*program.statements[:at], line, *program.statements[at + 1 :]))


def _change_constant(program: PatternProgram) -> Edits:
    """A number of the pattern is another: a scale, a dimension, an alpha, a sign; True for False."""
    for at, number, node, _ in _find(program, _is_constant):
        value: bool | int | float = ast.literal_eval(node)
        line = program.statements[at].encode()
        before, after = line[: node.col_offset].decode(), line[node.end_col_offset :].decode()
        if isinstance(value, bool):
            others: tuple[bool | int | float, ...] = (not value,)
        elif isinstance(value, int):
            others = (0, 1, -1, -2, value + 1, value - 1, -value)
        else:
            others = (0.0, 1.0, -1.0, -value, 2 * value, 1e-6)
        for wanted in dict.fromkeys(other for other in others if other != value):
            changed = ast.unparse(ast.parse(f"{before}({wanted!r}){after}"))
            yield (at, number, wanted), _put_line(program, at, changed)


def _return_result(program: PatternProgram) -> Edits:
    """A result within the pattern has a second user: it is returned as well."""
    for statement in program.statements:
        node = ast.parse(statement).body[0]
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(name, ast.Name) and name.id not in program.returns:
            yield (name.id,), replace(program, returns=(*program.returns, name.id))


def _swap(program: PatternProgram) -> Edits:
    """The first two operands of a call or an operation change places."""
    for at, number, node, tree in _find(program, _is_swappable):
        if isinstance(node, ast.BinOp):
            node.left, node.right = node.right, node.left
        elif isinstance(node, ast.Call):
            node.args[0], node.args[1] = node.args[1], node.args[0]
        if (line := ast.unparse(tree)) != program.statements[at]:
            yield (at, number), _put_line(program, at, line)


def _is_swappable(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and len(node.args) > 1)


def _insert_between(program: PatternProgram) -> Edits:
    """Something stands between two operators of the pattern, or before it."""
    for at, statement in enumerate(program.statements):
        read = [node.id for node in ast.walk(ast.parse(statement)) if isinstance(node, ast.Name) and _is_value(node)]
        for name in dict.fromkeys(read):
            for between, expression in _BETWEEN.items():
                put = ast.parse(f"({expression.format(x=name)})", mode="eval").body
                wrapped = ast.unparse(put_value(ast.parse(statement).body[0], name, put))
                yield (at, name, between), _put_line(program, at, wrapped)


def _is_value(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load) and node.id[:1] in "xt" and node.id[1:2].isdigit()


def _write_input(program: PatternProgram) -> Edits:
    """An input is written to, before the pattern or behind it."""
    for operand in program.operands:
        if operand.role == "input" and operand.floating:
            for write in _WRITES:
                line = write.format(x=operand.name)
                yield (operand.name, write, "before"), replace(program, statements=(line, *program.statements))
                yield (operand.name, write, "after"), replace(program, statements=(*program.statements, line))


def _follow(program: PatternProgram) -> Edits:
    """A result goes through a pointwise operator or a sum, and is returned in its place."""
    for name in program.returns:
        for after in _POINTWISE:
            statements = (*program.statements, f"{name}_after = {after.format(x=name)}")
            returns = tuple(f"{name}_after" if r == name else r for r in program.returns)
            yield (name, after), replace(program, statements=statements, returns=returns)


# -- how it is compiled -----------------------------------------------------------------------------


def _change_grad_mode(program: PatternProgram) -> Edits:
    for mode in _GRAD_MODES:
        if program.backward or mode != program.grad:
            yield (mode,), replace(program, grad=mode, backward=False)


def _add_backward(program: PatternProgram) -> Edits:
    if not program.backward and "freezing" not in program.settings and any(o.floating for o in program.operands):
        yield (), replace(program, backward=True)


def _make_dynamic(program: PatternProgram) -> Edits:
    if program.dynamic is None:
        yield (), replace(program, dynamic=True)


def _freeze(program: PatternProgram) -> Edits:
    """Weights are constants of the graph: every input but the first is one."""
    if "freezing" in program.settings or program.backward or not program.operands:
        return
    if any(operand.same_as for operand in program.operands):
        return
    first, *rest = program.operands
    operands = (first, *(replace(operand, role="parameter") for operand in rest))
    settings = {**program.settings, "freezing": True}
    yield (), replace(program, operands=operands, settings=settings, grad="no_grad")


KINDS: dict[str, Callable[[PatternProgram], Edits]] = {
    "size": _resize,
    "broadcast": _broadcast,
    "rank": _change_rank,
    "dtype": _change_dtypes,
    "mixed_dtypes": _mix_dtypes,
    "layout": _change_layout,
    "values": _change_values,
    "aliased": _alias,
    "role": _change_role,
    "constant": _change_constant,
    "second_user": _return_result,
    "swapped": _swap,
    "between": _insert_between,
    "written": _write_input,
    "followed": _follow,
    "grad_mode": _change_grad_mode,
    "backward": _add_backward,
    "dynamic": _make_dynamic,
    "freezing": _freeze,
}
"""Every kind of near miss, by the name that findings and reports give it: where it can be made, and the program."""


# Near misses of a pattern program, drawn at random.

_MOST_EDITS = 3
# Of the cases of a program, the share that is the program itself: its own numbers, at other values.
_UNCHANGED = 0.1


def draw_near_miss(program: PatternProgram, rng: random.Random) -> PatternProgram:
    """Draw a near miss of a program: up to three edits of different kinds; equal states of ``rng`` give equal cases.

    Each edit alone leaves a program that runs in eager mode; several together may not. A tenth has none.
    """
    wanted = 0 if rng.random() < _UNCHANGED else rng.choice(range(1, _MOST_EDITS + 1))
    kinds = sorted({edit.name for edit in program.edits})
    for kind in rng.sample(kinds, min(wanted, len(kinds))):
        edit = rng.choice([edit for edit in program.edits if edit.name == kind])
        program = apply_edit(program, edit) or program
    return program
