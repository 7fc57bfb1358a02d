"""The programs one change away from a program, each with the change in words, in the order in which they are tried.

What is unusual is replaced by what is usual first: such a change says most. The kinds follow one another in a fixed
order, so that one cause has one name in programs of different sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.causes.change import Change
from fuzzcompile.causes.operations import Argument, arguments, operation
from fuzzcompile.causes.tensors import dtypes, layouts, sharing, sizes, values_of_inputs
from fuzzcompile.causes.wording import call
from fuzzcompile.reduction.evaluating import Evaluation, evaluate
from fuzzcompile.reduction.program import Program, Ref, Statement
from fuzzcompile.reduction.writing import literal

# What these say is no part of what an operation computes.
_ASIDE = ("device", "layout", "pin_memory", "memory_format", "generator", "size", "self", "copy", "non_blocking")


def changes(program: Program) -> Iterator[Change]:
    """Programs one change away that run in eager, without duplicates."""
    evaluation = evaluate(program)
    seen = [program]
    for change in _all(program, evaluation):
        if change.program not in seen:
            seen.append(change.program)
            if evaluate(change.program).failed is None:
                yield change


def _all(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    statements = [_Statement(program, statement, evaluation) for statement in program.statements]

    def each(*ways: Callable[[_Statement], Iterator[Change]]) -> Iterator[Change]:
        for way in ways:
            yield from _together(program, [change for statement in statements for change in way(statement)])

    yield from each(_Statement.defaults, _Statement.last_dimension, _Statement.order, _Statement.permutation)
    yield from dtypes(program)
    yield from layouts(program, evaluation)
    yield from sharing(program)
    yield from each(_Statement.numbers)
    yield from values_of_inputs(program)
    yield from sizes(program, evaluation)
    yield from each(_Statement.first_dimension, _Statement.flags)
    yield from _by_keyword(program)


def _together(program: Program, offered: Sequence[Change]) -> Iterator[Change]:
    """Yield changes shared by several statements first in all of them at once, then one by one."""
    seen: set[str] = set()
    for change in offered:
        same = [c.statement for c in offered if c.fingerprint == change.fingerprint and c.statement is not None]
        if len(same) > 1 and change.fingerprint not in seen:
            seen.add(change.fingerprint)
            changed = functools.reduce(Program.with_statement, same, program).without_dead_code()
            yield replace(change, program=changed, statement=None)
        yield change


def _by_keyword(program: Program) -> Iterator[Change]:
    """Every argument behind the first by its keyword: the same program."""

    def respelled(statement: Statement) -> Statement:
        given = arguments(statement)[1:] if statement.form == "function" else []
        moved = {argument.name: argument.value for argument in given if isinstance(argument.where, int)}
        if not moved or any(not name.isidentifier() for name in moved):
            return statement
        return replace(statement, args=statement.args[:1], kwargs={**moved, **statement.kwargs})

    pairs = [(statement, respelled(statement)) for statement in program.statements]
    changed = [(call(before), call(after)) for before, after in pairs if before is not after]
    if changed:
        yield Change(program.map_statements(respelled), "argument", "positional arguments", *changed[0])


@dataclass(frozen=True)
class _Statement:
    """A statement with the program around it."""

    program: Program
    statement: Statement
    evaluation: Evaluation

    def defaults(self) -> Iterator[Change]:
        """The default of each argument that is given another value."""
        for argument in self._arguments():
            implied = argument.default is None and argument.is_dimension  # from the number of dimensions
            if argument.has_default and not implied and not _same(argument.value, argument.default):
                yield self._with(argument, argument.default)

    def last_dimension(self) -> Iterator[Change]:
        """The last dimension for any before it."""
        for argument, rank in self._dimensions():
            if any(_from_end(dimension, rank) != -1 for dimension in _listed(argument.value)):
                yield self._with(argument, _in_the_form_of(argument.value, -1))

    def first_dimension(self) -> Iterator[Change]:
        """The first dimension for the last."""
        for argument, rank in self._dimensions():
            if rank > 1 and [_from_end(dimension, rank) for dimension in _listed(argument.value)] == [-1]:
                yield self._with(argument, _in_the_form_of(argument.value, 0))

    def order(self) -> Iterator[Change]:
        """Listed tensors in the order in which the program makes them."""
        made = [*(value.name for value in self.program.inputs), *(value.name for value in self.program.statements)]
        for argument in self._arguments():
            value = argument.value
            if isinstance(value, tuple | list) and len(value) > 1 and all(isinstance(part, Ref) for part in value):
                yield self._with(argument, type(value)(sorted(value, key=lambda ref: made.index(ref.name))))

    def permutation(self) -> Iterator[Change]:
        """An order of dimensions that swaps the last two among others, in two steps: the same tensor."""
        dims = self._permuted()
        if dims is None or len(dims) < 3 or dims[-2] < dims[-1] or dims[:-2] == list(range(len(dims) - 2)):
            return
        inner = Statement(
            f"{self.statement.name}_plain",
            "method",
            "permute",
            (self.statement.args[0], *dims[:-2], dims[-1], dims[-2]),
        )
        outer = Statement(self.statement.name, "method", "transpose", (Ref(inner.name), -2, -1))
        place = self.program.statements.index(self.statement)
        before, after = self.program.statements[:place], self.program.statements[place + 1 :]
        program = replace(self.program, statements=(*before, inner, outer, *after))
        text = f"{call(inner)}.transpose(-2, -1)"
        yield Change(program, "argument", "permute(dims)", call(self.statement), text, hides=True)

    def numbers(self) -> Iterator[Change]:
        """1 for a number that has no default, and 2 for 1."""
        for argument in self._arguments():
            value = argument.value
            if argument.has_default or argument.is_dimension or isinstance(value, bool):
                continue
            if isinstance(value, float) or (isinstance(value, int) and self.statement.form == "operator"):
                yield self._with(argument, type(value)(2 if value == 1 else 1), kind="value")

    def flags(self) -> Iterator[Change]:
        """The opposite of each flag that has its default."""
        for argument in self._arguments():
            if isinstance(argument.value, bool):
                yield self._with(argument, not argument.value)

    def _arguments(self) -> list[Argument]:
        if self.statement.form in ("getitem", "setitem", "attribute", "enter", "exit"):
            return []
        return [argument for argument in arguments(self.statement) if argument.name not in _ASIDE]

    def _dimensions(self) -> Iterator[tuple[Argument, int]]:
        """The arguments that name dimensions to work along, with the rank of the tensor."""
        tensor = next(iter(self.statement.refs()), None)
        known = self.evaluation.shape_of(tensor) if tensor is not None else None
        if known is None or operation(self.statement) == "permute":
            return
        rank = len(known[0]) + (operation(self.statement) in ("stack", "unsqueeze"))
        for argument in self._arguments():
            if argument.name in ("dim", "dims") and _listed(argument.value):
                yield argument, rank

    def _permuted(self) -> list[int] | None:
        """The order of dimensions that the statement makes; None if it makes none."""
        if operation(self.statement) != "permute" or not self.statement.refs():
            return None
        known = self.evaluation.shape_of(self.statement.refs()[0])
        if known is None or len(self.statement.refs()) != 1:
            return None
        # A tensor whose sizes are its dimensions shows where each of them goes.
        marked = torch.empty(tuple(range(2, len(known[0]) + 2)), device="meta")
        name = self.statement.name
        values = {self.statement.refs()[0]: marked, "torch": torch}
        try:
            exec(f"{name} = {call(self.statement)}", values)
        except (RuntimeError, TypeError, AttributeError, IndexError):
            return None
        result = values[name]
        return [size - 2 for size in result.shape] if isinstance(result, torch.Tensor) else None

    def _with(self, argument: Argument, value: object, *, kind: str = "argument") -> Change:
        statement = self.statement
        if isinstance(argument.where, str):
            changed = replace(statement, kwargs={**statement.kwargs, argument.where: value})
            before, after = (f"{argument.where}={_text(text)}" for text in (argument.value, value))
        else:
            args = (*statement.args[: argument.where], value, *statement.args[argument.where + 1 :])
            changed = replace(statement, args=args)
            before, after = call(statement), call(changed)
        fingerprint = f"{operation(statement)}({argument.name})"
        program = self.program.with_statement(changed).without_dead_code()
        return Change(program, kind, fingerprint, before, after, statement=changed)


def _text(value: object) -> str:
    return value.name if isinstance(value, Ref) else literal(value, _text)


def _same(value: object, default: object) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return value is default
    return not isinstance(value, Ref) and value == default


def _listed(value: object) -> list[int]:
    """The dimensions in an argument, one or several."""
    listed = value if isinstance(value, tuple | list) else [value]
    return [d for d in listed if isinstance(d, int) and not isinstance(d, bool)]


def _in_the_form_of(value: object, dimension: int) -> object:
    return type(value)([dimension]) if isinstance(value, tuple | list) else dimension


def _from_end(dimension: int, rank: int) -> int:
    return dimension - rank if dimension >= 0 else dimension
