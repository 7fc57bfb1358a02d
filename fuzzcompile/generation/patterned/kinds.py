"""The kinds of near misses: the edits that each can make to a program, and the functions that make them.

Each kind lists the edits that it can make to a program, and makes one of them. An edit names operands and places among
the statements, so that it can still be made after others; where it finds nothing any more, nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fuzzcompile.generation.patterned.edits import Argument, Edit
from fuzzcompile.generation.patterned.program import GradMode, Operand, PatternProgram
from fuzzcompile.generation.patterned.statements import (
    Place,
    also_returned,
    constants_of,
    inserted,
    operands_read,
    place_of,
    replaced,
    results_of,
    swappable,
    swapped,
    wrapped,
)
from fuzzcompile.generation.spec import InputLayout
from fuzzcompile.generation.tensors import LAYOUTS, VALUES

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
class Kind:
    """One kind: the arguments of the edits that it can make, and how one is made (None: not any more)."""

    arguments: Callable[[PatternProgram], Iterator[tuple[Argument, ...]]]
    apply: Callable[..., PatternProgram | None]


def edits_of(program: PatternProgram) -> list[Edit]:
    """Every edit that some kind can make to a program; not all of them leave one that runs."""
    return [Edit(name, arguments) for name, kind in KINDS.items() for arguments in kind.arguments(program)]


def applied(program: PatternProgram, edit: Edit) -> PatternProgram | None:
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


def _resizings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Every size becomes another, in shapes and in the numbers of the statements."""
    present = sorted({size for operand in program.operands for size in operand.shape})
    for size in present:
        yield from ((size, wanted) for wanted in dict.fromkeys((*_SIZES, *present)) if wanted != size)


def _resized(program: PatternProgram, size: int, wanted: int) -> PatternProgram | None:
    operands = tuple(
        replace(operand, shape=tuple(wanted if length == size else length for length in operand.shape))
        for operand in program.operands
    )
    if operands == program.operands:
        return None
    statements = program.statements
    for place, value in constants_of(statements):
        if value == size and size > 2:  # smaller numbers are dimensions and steps as often as sizes
            statements = replaced(statements, place, str(wanted))
    return replace(program, operands=operands, statements=statements)


def _dimensions(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One dimension of one operand is 1 (it broadcasts) or 0."""
    for operand in program.operands:
        for dimension, size in enumerate(operand.shape):
            yield from ((operand.name, dimension, wanted) for wanted in (1, 0) if wanted != size)


def _broadcast(program: PatternProgram, name: str, dimension: int, size: int) -> PatternProgram | None:
    shape = program.operand(name).shape
    if dimension >= len(shape):
        return None
    return with_operand(program, name, shape=(*shape[:dimension], size, *shape[dimension + 1 :]))


def _ranks(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An operand has a dimension more in front, or one less."""
    for operand in program.operands:
        yield from ((operand.name, more) for more in ((1, -1) if operand.shape else (1,)))


def _ranked(program: PatternProgram, name: str, more: int) -> PatternProgram | None:
    shape = program.operand(name).shape
    if more < 0 and not shape:
        return None
    return with_operand(program, name, shape=(2, *shape) if more > 0 else shape[1:], layout=None)


# -- dtypes, layouts, values, memory ----------------------------------------------------------------


def _mixed(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One operand has another dtype than the others."""
    for operand in program.operands:
        dtypes = _DTYPES + _INTEGERS if operand.floating else _INTEGERS
        yield from ((operand.name, dtype) for dtype in dtypes if dtype != operand.dtype)


def _with_dtype(program: PatternProgram, name: str, dtype: str) -> PatternProgram:
    return with_operand(program, name, dtype=dtype, values=None)


def _dtypes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """All floating operands have another dtype."""
    present = {operand.dtype for operand in program.operands if operand.floating}
    yield from ((dtype,) for dtype in _DTYPES if present and present != {dtype})


def _cast(program: PatternProgram, dtype: str) -> PatternProgram:
    operands = tuple(replace(operand, dtype=dtype) if operand.floating else operand for operand in program.operands)
    return replace(program, operands=operands)


def _layouts(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    for operand in program.operands:
        yield from ((operand.name, name) for name, layout in LAYOUTS.items() if len(operand.shape) in layout.ranks)


def _laid_out(program: PatternProgram, name: str, layout: InputLayout) -> PatternProgram | None:
    shape = program.operand(name).shape
    fits = len(shape) in LAYOUTS[layout].ranks and 0 not in shape
    return with_operand(program, name, layout=layout) if fits else None


def _values(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    for operand in program.operands:
        if operand.floating:
            yield from ((operand.name, name) for name in VALUES)


def _filled(program: PatternProgram, name: str, values: str) -> PatternProgram | None:
    operand = program.operand(name)
    return with_operand(program, name, values=values) if operand.floating and 0 not in operand.shape else None


def _pairs(program: PatternProgram) -> Iterator[tuple[Operand, Operand]]:
    """Inputs of one shape and dtype."""
    inputs = [operand for operand in program.operands if operand.role == "input" and operand.same_as is None]
    for at, first in enumerate(inputs):
        yield from ((first, second) for second in inputs[at + 1 :])


def _aliases(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """One tensor is passed for two inputs; or a view of it is."""
    for first, second in _pairs(program):
        if (first.shape, first.dtype) == (second.shape, second.dtype):
            yield first.name, second.name, ""
        elif first.dtype == second.dtype and first.shape[::-1] == second.shape and len(first.shape) == 2:
            yield first.name, second.name, ".t()"


def _aliased(program: PatternProgram, first: str, second: str, view: str) -> PatternProgram | None:
    a, b = program.operand(first), program.operand(second)
    if a.dtype != b.dtype or (a.shape[::-1] if view else a.shape) != b.shape or a.same_as is not None:
        return None
    return with_operand(program, second, same_as=first + view)


def _roles(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An input that the module holds, or a weight that is passed in."""
    for operand in program.operands:
        yield from ((operand.name, role) for role in ("input", "parameter", "buffer") if role != operand.role)


def _held(program: PatternProgram, name: str, role: str) -> PatternProgram | None:
    aliased = {(operand.same_as or "").split(".")[0] for operand in program.operands}
    inputs = [operand.name for operand in program.operands if operand.role == "input"]
    if program.operand(name).same_as is not None or name in aliased or (role != "input" and inputs == [name]):
        return None
    return with_operand(program, name, role=role)


# -- the statements ---------------------------------------------------------------------------------


def _constants(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A number of the pattern is another: a scale, a dimension, an alpha, a sign; True for False."""
    for place, value in constants_of(program.statements):
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


def _constant(program: PatternProgram, statement: int, number: int, value: Argument) -> PatternProgram | None:
    statements = replaced(program.statements, Place(statement, number), repr(value))
    return None if statements == program.statements else replace(program, statements=statements)


def _users(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A result within the pattern has a second user: it is returned as well."""
    yield from ((name,) for name in results_of(program.statements) if name not in program.returns)


def _used(program: PatternProgram, name: str) -> PatternProgram | None:
    return None if name in program.returns else also_returned(program, name)


def _swaps(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Two arguments of a call change places."""
    yield from ((place.statement, place.number) for place in swappable(program.statements))


def _swapped(program: PatternProgram, statement: int, number: int) -> PatternProgram | None:
    statements = swapped(program.statements, Place(statement, number))
    return None if statements == program.statements else replace(program, statements=statements)


def _betweens(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """Something stands between two operators of the pattern, or before it."""
    for statement, name in operands_read(program.statements):
        yield from ((statement, name, between) for between in _BETWEEN)


def _between(program: PatternProgram, statement: int, name: str, between: str) -> PatternProgram | None:
    at = place_of(program.statements, statement)
    if at is None:
        return None
    return replace(program, statements=wrapped(program.statements, at, name, _BETWEEN[between].format(x=name)))


def _writings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """An input is written to, before the pattern or behind it."""
    for operand in program.operands:
        if operand.role == "input" and operand.floating:
            yield from ((operand.name, write, at) for write in _WRITES for at in ("before", "after"))


def _written(program: PatternProgram, name: str, write: str, at: str) -> PatternProgram:
    index = 0 if at == "before" else len(program.statements)
    return replace(program, statements=inserted(program.statements, index, write.format(x=name)))


def _surroundings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    """A result goes through a pointwise operator or a sum, and is returned in its place."""
    yield from ((name, after) for name in program.returns for after in _POINTWISE)


def _followed(program: PatternProgram, name: str, after: str) -> PatternProgram | None:
    if name not in program.returns:
        return None
    result = f"{name}_after"
    statements = (*program.statements, f"{result} = {after.format(x=name)}")
    return replace(program, statements=statements, returns=tuple(result if r == name else r for r in program.returns))


# -- how it is compiled -----------------------------------------------------------------------------


def _grad_modes(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    modes: tuple[GradMode, ...] = ("no_grad", "inference_mode", "enabled")
    yield from ((mode,) for mode in modes if program.backward or mode != program.grad)


def _graded(program: PatternProgram, mode: GradMode) -> PatternProgram:
    return replace(program, grad=mode, backward=False)


def _backwards(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if not program.backward and "freezing" not in program.settings and any(o.floating for o in program.operands):
        yield ()


def _dynamics(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if program.dynamic is None:
        yield ()


def _freezings(program: PatternProgram) -> Iterator[tuple[Argument, ...]]:
    if "freezing" not in program.settings and not program.backward:
        yield ()


def _frozen(program: PatternProgram) -> PatternProgram | None:
    """Weights are constants of the graph: every input but the first is one."""
    if program.backward or any(operand.same_as for operand in program.operands):
        return None
    operands = tuple(replace(o, role="parameter" if at else o.role) for at, o in enumerate(program.operands))
    return replace(program, operands=operands, settings={**program.settings, "freezing": True}, grad="no_grad")


KINDS: dict[str, Kind] = {
    "size": Kind(_resizings, _resized),
    "broadcast": Kind(_dimensions, _broadcast),
    "rank": Kind(_ranks, _ranked),
    "dtype": Kind(_dtypes, _cast),
    "mixed_dtypes": Kind(_mixed, _with_dtype),
    "layout": Kind(_layouts, _laid_out),
    "values": Kind(_values, _filled),
    "aliased": Kind(_aliases, _aliased),
    "role": Kind(_roles, _held),
    "constant": Kind(_constants, _constant),
    "second_user": Kind(_users, _used),
    "swapped": Kind(_swaps, _swapped),
    "between": Kind(_betweens, _between),
    "written": Kind(_writings, _written),
    "followed": Kind(_surroundings, _followed),
    "grad_mode": Kind(_grad_modes, _graded),
    "backward": Kind(_backwards, lambda program: replace(program, backward=True)),
    "dynamic": Kind(_dynamics, lambda program: replace(program, dynamic=True)),
    "freezing": Kind(_freezings, _frozen),
}
"""Every kind of near miss, by the name that findings and reports give it."""
