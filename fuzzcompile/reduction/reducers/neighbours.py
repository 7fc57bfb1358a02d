"""The nearest program that passes: one change of one line of the reduced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from fuzzcompile.reduction.evaluating import evaluate
from fuzzcompile.reduction.filling import contiguous, is_contiguous, resized
from fuzzcompile.reduction.program import Input, Program, Ref, Statement
from fuzzcompile.reduction.writing import case_source

# Programs that are compiled at most: what is not found by then would not be near.
_MOST = 14
_DIMENSIONS = (
    "softmax", "log_softmax", "sum", "mean", "cumsum", "amax", "amin", "argmax", "argmin", "logsumexp", "stack", "cat",
    "cumprod", "flip", "unsqueeze", "squeeze", "prod", "min", "max", "sort", "topk", "norm", "std", "var",
)  # fmt: skip
_MAKING = ("full", "ones", "zeros", "empty", "randn", "rand")
_OTHER_OPERATOR = {"/": "*", "*": "/", "-": "+", "+": "-", "+=": "-=", "*=": "/=", "<": "<=", ">": ">="}


def neighbours(program: Program) -> Iterator[Program]:
    """Programs one change away that run in eager, the most telling first, each once."""
    seen = [program]
    for candidate in _changes(program):
        if candidate not in seen and evaluate(candidate).failed is None:
            seen.append(candidate)
            yield candidate


def passing_neighbour(program: Program, passes: Callable[[Program], bool], *, most: int = _MOST) -> str | None:
    """The source of the first neighbour that ``passes``, of which at most ``most`` are tried; None if none does."""
    own = len(case_source(program).splitlines())
    tried = 0
    for candidate in neighbours(program):
        source = case_source(candidate)
        if len(source.splitlines()) != own:
            continue
        if tried >= most:
            return None
        tried += 1
        if passes(candidate):
            return source
    return None


def _changes(program: Program) -> Iterator[Program]:
    """What is odd made usual, then what is a special case made another one, then other changes."""
    statements = program.statements
    yield from (program.with_statement(s) for one in statements for s in _dimensions(one, odd=True))
    yield from (program.with_input(contiguous(one)) for one in program.inputs if not is_contiguous(one))
    yield from (program.with_input(_one_element(one)) for one in program.inputs if not one.shape)
    yield from (program.with_statement(s) for one in statements for s in _dtypes(one))
    yield from (program.with_input(i) for one in program.inputs for i in _wider(one))
    writes = any(statement.writes or "put" in statement.target for statement in statements)
    if writes:
        yield from _copies(program)
    yield from (program.with_statement(s) for one in statements for s in _made_sizes(one))
    yield from (program.with_input(i) for one in program.inputs for i in _sizes(one, ones=True))
    yield from (program.with_statement(s) for one in statements for s in _operators(one))
    yield from _copies(program)
    yield from (program.with_input(i) for one in program.inputs for i in _sizes(one, ones=False))
    for changes in (_flags, _constants, _usual_dimensions):
        yield from (program.with_statement(s) for one in statements for s in changes(one))


def _dimensions(statement: Statement, *, odd: bool) -> Iterator[Statement]:
    """The last dimension for an ``odd`` one that is named, or the first for the last."""
    other = -1 if odd else 0
    for key in ("dim", "axis"):
        value = statement.kwargs.get(key)
        if _is_whole(value) and (value != -1) == odd:
            yield replace(statement, kwargs={**statement.kwargs, key: other})
    if statement.target.rpartition(".")[2] in _DIMENSIONS:
        for place, value in enumerate(statement.args[1:], start=1):
            if _is_whole(value) and (value != -1) == odd:
                yield _argument(statement, place, other)


def _usual_dimensions(statement: Statement) -> Iterator[Statement]:
    yield from _dimensions(statement, odd=False)
    if statement.form == "method" and statement.target == "permute" and len(statement.args) > 3:
        *front, one, other = statement.args
        yield replace(statement, args=(*front, other, one))


def _dtypes(statement: Statement) -> Iterator[Statement]:
    """Another dtype where one is named: float32 for a narrow one, whole numbers for floating ones, and back."""
    for key, value in statement.kwargs.items():
        if isinstance(value, torch.dtype):
            for other in _other_dtypes(value):
                yield replace(statement, kwargs={**statement.kwargs, key: other})
    for place, value in enumerate(statement.args):
        if isinstance(value, torch.dtype):
            for other in _other_dtypes(value):
                yield _argument(statement, place, other)


def _other_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    if dtype in (torch.float32, torch.float64):
        return (torch.int64,)
    return (torch.float32,) if dtype.is_floating_point or dtype is torch.int64 else (torch.int64, torch.float32)


def _wider(one: Input) -> Iterator[Input]:
    """An input of a narrow dtype in the usual one of its kind; one of truth values as one of numbers."""
    if one.dtype is torch.bool:
        yield replace(one, dtype=torch.float32, fill="randn", values=None)
        return
    if one.dtype.is_complex or one.dtype in (torch.float32, torch.float64, torch.int64):
        return
    dtype = torch.float32 if one.dtype.is_floating_point else torch.int32 if one.dtype.itemsize < 4 else torch.int64
    yield replace(one, dtype=dtype, values=None if one.values is None else one.values.to(dtype))


def _one_element(one: Input) -> Input:
    """An input without dimensions as one of one element."""
    values = None if one.values is None else one.values.reshape(1)
    return replace(one, shape=(1,), stride=(1,), values=values)


def _sizes(one: Input, *, ones: bool) -> Iterator[Input]:
    """2 for each size of 1, or another size for each that is more."""
    for dimension, size in enumerate(one.shape):
        if (size == 1) != ones:
            continue
        for other in (2,) if ones else (size + 1, 1):
            if one.fill == "literal" and other > size:
                continue  # there are no values for more elements
            shape = (*one.shape[:dimension], other, *one.shape[dimension + 1 :])
            yield resized(one if one.fill in ("literal", "randint") else replace(one, values=None), shape)


def _made_sizes(statement: Statement) -> Iterator[Statement]:
    """Another size where a tensor is made: one dimension for none, 2 for 1."""
    if statement.target.rpartition(".")[2] not in _MAKING or not statement.args:
        return
    shape = statement.args[0]
    if not isinstance(shape, tuple | list) or not all(_is_whole(size) for size in shape):
        return
    if not shape:
        yield _argument(statement, 0, type(shape)([1]))
    for place, size in enumerate(shape):
        other = 2 if size == 1 else size + 1
        yield _argument(statement, 0, type(shape)([*shape[:place], other, *shape[place + 1 :]]))


def _copies(program: Program) -> Iterator[Program]:
    """A copy of a tensor, where memory may be shared or laid out in an odd way: of a result, then of an argument."""
    made = {statement.name for statement in program.statements}
    for index, statement in enumerate(program.statements):
        if statement.writes or statement.form in ("enter", "exit", "attribute"):
            continue
        copy = Statement(f"{statement.name}_copy", "method", "clone", (Ref(statement.name),))
        rest = replace(program, inputs=(), statements=program.statements[index + 1 :]).renamed(
            {copy.args[0].name: copy.name}
        )
        statements = (*program.statements[: index + 1], copy, *rest.statements)
        yield replace(program, statements=statements, outputs=rest.outputs)
    for index, statement in enumerate(program.statements):
        for name in dict.fromkeys(statement.refs()):
            if name not in made or statement.form in ("enter", "exit", "attribute"):
                continue
            copy = Statement(f"{name}_copy", "method", "clone", (Ref(name),))
            swapped = replace(program, statements=(statement,)).renamed({name: copy.name}).statements[0]
            swapped = replace(swapped, name=statement.name)
            statements = (*program.statements[:index], copy, swapped, *program.statements[index + 1 :])
            yield replace(program, statements=statements)


def _flags(statement: Statement) -> Iterator[Statement]:
    for key, value in statement.kwargs.items():
        if isinstance(value, bool):
            yield replace(statement, kwargs={**statement.kwargs, key: not value})
    for place, value in enumerate(statement.args):
        if isinstance(value, bool):
            yield _argument(statement, place, not value)


def _constants(statement: Statement) -> Iterator[Statement]:
    for place, value in enumerate(statement.args):
        if isinstance(value, float) and statement.form != "getitem":
            yield _argument(statement, place, 1.0 if value != 1.0 else 2.0)


def _operators(statement: Statement) -> Iterator[Statement]:
    other = _OTHER_OPERATOR.get(statement.target) if statement.form == "operator" else None
    if other is not None:
        yield replace(statement, target=other)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _argument(statement: Statement, place: int, value: Any) -> Statement:
    return replace(statement, args=(*statement.args[:place], value, *statement.args[place + 1 :]))
