"""The nearest program that passes: one change of one line of the reduced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzzcompile.reduction.evaluating import evaluate
from fuzzcompile.reduction.filling import contiguous, is_contiguous, resized
from fuzzcompile.reduction.program import Program, Statement
from fuzzcompile.reduction.writing import case_source

_REDUCING = ("softmax", "log_softmax", "sum", "mean", "cumsum", "amax", "amin", "argmax", "logsumexp", "stack", "cat")


def neighbours(program: Program) -> Iterator[Program]:
    """Programs one change away that run in eager, the most telling first."""
    for candidate in _changes(program):
        if candidate != program and evaluate(candidate).failed is None:
            yield candidate


def passing_neighbour(program: Program, passes: Callable[[Program], bool], *, most: int = 6) -> str | None:
    """The source of the first neighbour that ``passes``, of which at most ``most`` are tried; None if none does."""
    own = len(case_source(program).splitlines())
    for tried, candidate in enumerate(neighbours(program)):
        if tried >= most:
            return None
        if len(case_source(candidate).splitlines()) == own and passes(candidate):
            return case_source(candidate)
    return None


def _changes(program: Program) -> Iterator[Program]:
    for statement in program.statements:
        for changed in _other_dimensions(statement):
            yield program.with_statement(changed)
    for statement in program.statements:
        for changed in _other_constants(statement):
            yield program.with_statement(changed)
    for one in program.inputs:
        if not is_contiguous(one):
            yield program.with_input(contiguous(one))
    for one in program.inputs:
        for dimension, size in enumerate(one.shape):
            for other in (2, 3) if size == 1 else (1, size + 1):
                shape = (*one.shape[:dimension], other, *one.shape[dimension + 1 :])
                yield program.with_input(resized(replace(one, values=None), shape))


def _other_dimensions(statement: Statement) -> Iterator[Statement]:
    """The last dimension for another one, where a dimension is named."""
    for key in ("dim", "axis"):
        value = statement.kwargs.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            other = -1 if value != -1 else 0
            yield replace(statement, kwargs={**statement.kwargs, key: other})
    name = statement.target.rpartition(".")[2]
    if name in (
        "softmax",
        "log_softmax",
        "sum",
        "mean",
        "cumsum",
        "amax",
        "amin",
        "argmax",
        "logsumexp",
        "stack",
        "cat",
    ):
        for place, value in enumerate(statement.args[1:], start=1):
            if isinstance(value, int) and not isinstance(value, bool):
                yield _argument(statement, place, -1 if value != -1 else 0)


def _other_constants(statement: Statement) -> Iterator[Statement]:
    if statement.form == "method" and statement.target == "permute" and len(statement.args) > 3:
        *front, one, other = statement.args
        yield replace(statement, args=(*front, other, one))
    for key, value in statement.kwargs.items():
        if isinstance(value, bool):
            yield replace(statement, kwargs={**statement.kwargs, key: not value})
    for place, value in enumerate(statement.args):
        if isinstance(value, float) and statement.form != "getitem":
            yield _argument(statement, place, 1.0 if value != 1.0 else 2.0)


def _argument(statement: Statement, place: int, value: Any) -> Statement:
    return replace(statement, args=(*statement.args[:place], value, *statement.args[place + 1 :]))
