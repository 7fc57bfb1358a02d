"""Find the nearest program that passes: one change in one line of the reduced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fuzzcompile.programs.ir.case_source import is_contiguous, make_contiguous, resize_input, write_source
from fuzzcompile.programs.ir.evaluation import evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement

# Candidates compiled at most.
_MOST = 14
# Functions whose integer arguments are dimensions, and functions whose first argument is a shape; torch 2.13.
_DIMENSIONS = (
    "softmax", "log_softmax", "sum", "mean", "cumsum", "amax", "amin", "argmax", "argmin", "logsumexp", "stack", "cat",
    "cumprod", "flip", "unsqueeze", "squeeze", "prod", "min", "max", "sort", "topk", "norm", "std", "var",
)  # fmt: skip
_MAKING = ("full", "ones", "zeros", "empty", "randn", "rand")
_OTHER_OPERATOR = {"/": "*", "*": "/", "-": "+", "+": "-", "+=": "-=", "*=": "/=", "<": "<=", ">": ">="}


def generate_neighbours(program: Program) -> Iterator[Program]:
    """Programs one change away that run in eager, the most instructive first, without duplicates."""
    seen = [program]
    for candidate in _generate_changes(program):
        if candidate not in seen and evaluate(candidate).failed is None:
            seen.append(candidate)
            yield candidate


def find_passing_neighbour(program: Program, passes: Callable[[Program], bool], *, most: int = _MOST) -> str | None:
    """The source of the first neighbour that ``passes``, of which at most ``most`` are tried; None if none does."""
    own = len(write_source(program).splitlines())
    tried = 0
    for candidate in generate_neighbours(program):
        source = write_source(candidate)
        if len(source.splitlines()) != own:
            continue
        if tried >= most:
            return None
        tried += 1
        if passes(candidate):
            return source
    return None


def _generate_changes(program: Program) -> Iterator[Program]:
    """Replace the unusual by the usual first, then special cases, then anything else."""

    def in_statements(change: Callable[[Statement], Iterator[Statement]]) -> Iterator[Program]:
        return (program.with_statement(new) for statement in program.statements for new in change(statement))

    def in_inputs(change: Callable[[Input], Iterator[Input]]) -> Iterator[Program]:
        return (program.with_input(new) for input_ in program.inputs for new in change(input_))

    yield from in_statements(_odd_dimensions)
    yield from in_inputs(_plain_layout)
    yield from in_inputs(_one_element)
    yield from in_statements(_dtypes)
    yield from in_inputs(_wider)
    if any(statement.writes or "put" in statement.target for statement in program.statements):
        yield from _copies(program)
    yield from in_statements(_change_made_sizes)
    yield from in_inputs(_sizes_of_one)
    yield from in_statements(_operators)
    yield from _copies(program)
    yield from in_inputs(_other_sizes)
    for change in (_flags, _constants, _usual_dimensions):
        yield from in_statements(change)


def _odd_dimensions(statement: Statement) -> Iterator[Statement]:
    """The last dimension in place of any other."""
    return _dimensions(statement, odd=True)


def _plain_layout(input_: Input) -> Iterator[Input]:
    """The strides of a fresh tensor for odd ones."""
    if not is_contiguous(input_):
        yield make_contiguous(input_)


def _one_element(input_: Input) -> Iterator[Input]:
    """One dimension for none."""
    if not input_.shape:
        values = None if input_.values is None else input_.values.reshape(1)
        yield replace(input_, shape=(1,), stride=(1,), values=values)


def _dimensions(statement: Statement, *, odd: bool) -> Iterator[Statement]:
    """The last dimension in place of an ``odd`` one, or the first in place of the last."""
    replacement = -1 if odd else 0
    for key in ("dim", "axis"):
        value = statement.kwargs.get(key)
        if _is_whole(value) and (value != -1) == odd:
            yield replace(statement, kwargs={**statement.kwargs, key: replacement})
    if statement.target.rpartition(".")[2] in _DIMENSIONS:
        for place, value in enumerate(statement.args[1:], start=1):
            if _is_whole(value) and (value != -1) == odd:
                yield _with(statement, place, replacement)


def _usual_dimensions(statement: Statement) -> Iterator[Statement]:
    yield from _dimensions(statement, odd=False)
    if statement.form == "method" and statement.target == "permute" and len(statement.args) > 3:
        *front, last_but_one, last = statement.args
        yield replace(statement, args=(*front, last, last_but_one))


def _dtypes(statement: Statement) -> Iterator[Statement]:
    """Another dtype: float32 in place of a narrow one, integers in place of floating ones, and back."""
    for where, value in _arguments(statement):
        if isinstance(value, torch.dtype):
            for dtype in _other_dtypes(value):
                yield _with(statement, where, dtype)


def _other_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    if dtype in (torch.float32, torch.float64):
        return (torch.int64,)
    return (torch.float32,) if dtype.is_floating_point or dtype is torch.int64 else (torch.int64, torch.float32)


def _wider(input_: Input) -> Iterator[Input]:
    """The usual dtype in place of a narrow one; floating numbers in place of booleans."""
    if input_.dtype is torch.bool:
        yield replace(input_, dtype=torch.float32, fill="randn", values=None)
        return
    if input_.dtype.is_complex or input_.dtype in (torch.float32, torch.float64, torch.int64):
        return
    dtype = (
        torch.float32 if input_.dtype.is_floating_point else torch.int32 if input_.dtype.itemsize < 4 else torch.int64
    )
    yield replace(input_, dtype=dtype, values=None if input_.values is None else input_.values.to(dtype))


def _sizes_of_one(input_: Input) -> Iterator[Input]:
    """2 for each size of 1."""
    for place, size in enumerate(input_.shape):
        if size == 1:
            yield from _change_size(input_, place, 2)


def _other_sizes(input_: Input) -> Iterator[Input]:
    """One more, or 1, for each size but 1."""
    for place, size in enumerate(input_.shape):
        if size != 1:
            yield from _change_size(input_, place, size + 1)
            yield from _change_size(input_, place, 1)


def _change_size(input_: Input, place: int, size: int) -> Iterator[Input]:
    if input_.fill == "literal" and size > input_.shape[place]:
        return  # there are no values for more elements
    kept = input_ if input_.fill in ("literal", "randint") else replace(input_, values=None)
    yield resize_input(kept, (*input_.shape[:place], size, *input_.shape[place + 1 :]))


def _change_made_sizes(statement: Statement) -> Iterator[Statement]:
    """Another size for a tensor that is made: one dimension in place of none, 2 in place of 1."""
    if statement.target.rpartition(".")[2] not in _MAKING or not statement.args:
        return
    shape = statement.args[0]
    if not isinstance(shape, tuple | list) or not all(_is_whole(size) for size in shape):
        return
    if not shape:
        yield _with(statement, 0, type(shape)([1]))
    for place, size in enumerate(shape):
        resized_to = 2 if size == 1 else size + 1
        yield _with(statement, 0, type(shape)([*shape[:place], resized_to, *shape[place + 1 :]]))


def _copies(program: Program) -> Iterator[Program]:
    """A copy, which ends sharing and odd layouts: of a result, then of an argument."""
    made = {statement.name for statement in program.statements}
    for index, statement in enumerate(program.statements):
        if statement.writes or statement.form in ("enter", "exit", "attribute"):
            continue
        copy = Statement(f"{statement.name}_copy", "method", "clone", (Ref(statement.name),))
        rest = replace(program, inputs=(), statements=program.statements[index + 1 :])
        rest = rest.rename({statement.name: copy.name})
        statements = (*program.statements[: index + 1], copy, *rest.statements)
        yield replace(program, statements=statements, outputs=rest.outputs)
    for index, statement in enumerate(program.statements):
        for name in dict.fromkeys(statement.refs()):
            if name not in made or statement.form in ("enter", "exit", "attribute"):
                continue
            copy = Statement(f"{name}_copy", "method", "clone", (Ref(name),))
            swapped = replace(program, statements=(statement,)).rename({name: copy.name}).statements[0]
            swapped = replace(swapped, name=statement.name)
            statements = (*program.statements[:index], copy, swapped, *program.statements[index + 1 :])
            yield replace(program, statements=statements)


def _flags(statement: Statement) -> Iterator[Statement]:
    """The opposite of each flag."""
    for where, value in _arguments(statement):
        if isinstance(value, bool):
            yield _with(statement, where, not value)


def _constants(statement: Statement) -> Iterator[Statement]:
    for place, value in enumerate(statement.args):
        if isinstance(value, float) and statement.form != "getitem":
            yield _with(statement, place, 1.0 if value != 1.0 else 2.0)


def _operators(statement: Statement) -> Iterator[Statement]:
    replacement = _OTHER_OPERATOR.get(statement.target) if statement.form == "operator" else None
    if replacement is not None:
        yield replace(statement, target=replacement)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _arguments(statement: Statement) -> Iterator[tuple[str | int, object]]:
    """The arguments, by keyword or by place."""
    yield from statement.kwargs.items()
    yield from enumerate(statement.args)


def _with(statement: Statement, where: str | int, value: object) -> Statement:
    """The statement with another argument at a keyword or place."""
    if isinstance(where, str):
        return replace(statement, kwargs={**statement.kwargs, where: value})
    return replace(statement, args=(*statement.args[:where], value, *statement.args[where + 1 :]))
