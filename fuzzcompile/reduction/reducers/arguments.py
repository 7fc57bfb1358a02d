"""Reduce arguments: leave out optional ones, round constants, make dtypes and modes plain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fuzzcompile.reduction.program import Input, Program, Ref, Statement
from fuzzcompile.reduction.search import Search


def drop_arguments(search: Search) -> None:
    """Leave out keyword arguments, trailing arguments and optional tensors (a bias, a mask)."""
    together = search.best
    for statement in search.best.statements:
        if statement.kwargs and statement.form in ("function", "method"):
            constants = {k: v for k, v in statement.kwargs.items() if isinstance(v, Ref) or _is_telling(v)}
            together = together.with_statement(replace(statement, kwargs=constants))
    search.attempt(together)
    for name in [s.name for s in search.best.statements]:
        for shorter in _shorter(_named(search.best, name)):
            if search.attempt(search.best.with_statement(shorter)):
                break


def _is_telling(value: object) -> bool:
    """Return whether the argument changes the result: a dimension, a dtype."""
    return value is not None and not isinstance(value, bool)


def _named(program: Program, name: str) -> Statement | None:
    return next((s for s in program.statements if s.name == name), None)


def _shorter(statement: Statement | None) -> Iterator[Statement]:
    """The statement with fewer arguments, the fewest first; many of these do not run in eager."""
    if statement is None or statement.form not in ("function", "method"):
        return
    if len(statement.kwargs) > 1:
        yield replace(statement, kwargs={})
    for key in statement.kwargs:
        yield replace(statement, kwargs={k: v for k, v in statement.kwargs.items() if k != key})
    least = 1
    args = statement.args
    if len(args) > least and (isinstance(args[-1], Ref) or args[-1] is None or isinstance(args[-1], bool | float)):
        for count in range(least, len(args)):
            if any(arg is None or isinstance(arg, Ref | bool | float) for arg in args[count:]):
                yield replace(statement, args=args[:count])


def round_constants(search: Search) -> None:
    """Round floating constants: all together, then one by one."""
    for rounding in (_half_or_two, _two_digits):
        candidate = search.best.map_statements(functools.partial(_round_in, change=rounding))
        if candidate != search.best and search.attempt(candidate):
            return
    for name in [s.name for s in search.best.statements]:
        statement = _named(search.best, name)
        if statement is not None:
            rounded = _round_in(statement, _two_digits)
            if rounded != statement:
                search.attempt(search.best.with_statement(rounded))


def _round_in(statement: Statement, change: Callable[[float], float]) -> Statement:
    return statement.map_leaves(lambda leaf: change(leaf) if isinstance(leaf, float) else leaf)


def _is_short(value: float) -> bool:
    return value != value or value in (float("inf"), float("-inf")) or float(f"{value:.2g}") == value


def _half_or_two(value: float) -> float:
    """0.5 or 2 for a longer number, with its sign."""
    if _is_short(value):
        return value
    plain = 0.5 if abs(value) < 1 else 2.0
    return -plain if value < 0 else plain


def _two_digits(value: float) -> float:
    return value if _is_short(value) else float(f"{value:.2g}")


def evaluation_mode(search: Search) -> None:
    """Turn ``training`` and dropout off."""

    def plain(statement: Statement) -> Statement:
        kwargs = {k: (False if k == "training" else v) for k, v in statement.kwargs.items()}
        args = statement.args
        if statement.target.endswith("dropout") and len(args) > 2:
            args = (*args[:2], False, *args[3:])
        elif statement.target.endswith("dropout") and "training" not in kwargs:
            kwargs["training"] = False
        return replace(statement, args=args, kwargs=kwargs)

    search.attempt(search.best.map_statements(plain))


def single_precision(search: Search) -> None:
    """Replace every floating dtype by float32, in inputs and in statements."""

    def narrowed(leaf: object) -> object:
        return torch.float32 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    def of_input(input_: Input) -> Input:
        if not input_.dtype.is_floating_point:
            return input_
        values = None if input_.values is None else input_.values.to(torch.float32)
        return replace(input_, dtype=torch.float32, values=values)

    def of_statement(statement: Statement) -> Statement:
        casts = statement.form == "method" and statement.target in ("bfloat16", "half", "double")
        return replace(statement.map_leaves(narrowed), target="float" if casts else statement.target)

    search.attempt(search.best.map_inputs(of_input).map_statements(of_statement))
