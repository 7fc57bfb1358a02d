"""The programs one change away from a program, each with the change in words, in the order in which they are tried.

What is unusual is replaced by what is usual first: such a change says most. The kinds follow one another in a fixed
order, so that one cause has one name in programs of different sizes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from fuzzcompile.programs.edits.operations import StatementArgument, list_arguments, name_operation
from fuzzcompile.programs.ir.case_source import (
    Writer,
    format_literal,
    input_expression,
    is_contiguous,
    make_contiguous,
    resize_input,
)
from fuzzcompile.programs.ir.evaluation import Evaluation, evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement, find_refs, map_leaves

# One change to a program, in words.


@dataclass(frozen=True)
class Change:
    """A program one change away from another.

    Attributes:
        program: the changed program.
        kind: ``argument``, ``dtype``, ``layout``, ``sharing``, ``value`` or ``size``.
        fingerprint: what was changed, in words that hang on neither sizes nor names.
        before: what the change replaces, as a user writes it.
        after: what replaces it.
        hides: whether an operator was put between two others, so that it says little if a pattern matches no more.
        statement: the changed statement, where only one was.
    """

    program: Program
    kind: str
    fingerprint: str
    before: str
    after: str
    hides: bool = False
    statement: Statement | None = None


# Parts of a program as a user writes them.


def format_call(statement: Statement) -> str:
    """The right-hand side of a statement, its operands by name."""
    return Writer(set()).expression(statement)[0]


def format_dtype(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def format_strides(input_: Input) -> str:
    """An input with its strides."""
    return f"{input_.name} with strides {input_.stride}"


def format_shape(input_: Input) -> str:
    """An input with its shape."""
    return f"{input_.name} of shape {input_.shape}"


# Changes of what tensors are: their dtypes, layouts, what shares them, their values and sizes.

_USUAL = torch.float32
# Functions that take the shape of what they make.
_MAKING = ("full", "ones", "zeros", "empty", "randn", "rand")
# Statements after which a tensor may be laid out in another way than a fresh one.
_VIEWS = ("permute", "expand", "as_strided", "unfold", "diagonal", "getitem")


def change_dtypes(program: Program) -> Iterator[Change]:
    """All floating tensors in float32 (or, where they are, in float64), then one input in the dtype of the others."""
    present = {input_.dtype for input_ in program.inputs} | set(_find_dtypes(program))
    floating = sorted((dtype for dtype in present if dtype.is_floating_point), key=str)
    for wanted in (_USUAL, torch.float64):
        if floating and set(floating) != {wanted}:
            names = " and ".join(format_dtype(dtype) for dtype in floating if dtype is not wanted)
            yield Change(_all_in(program, wanted), "dtype", "dtype", names, format_dtype(wanted))
    counted = Counter(input_.dtype for input_ in program.inputs)
    usual = [dtype for dtype, _ in counted.most_common()] + [_USUAL]
    for input_ in program.inputs:
        for dtype in dict.fromkeys(usual):
            if dtype is not input_.dtype and not input_.dtype.is_complex:
                before, after = (f"{input_.name} of {format_dtype(kind)}" for kind in (input_.dtype, dtype))
                yield Change(program.with_input(_cast(input_, dtype)), "dtype", "dtype", before, after)


def change_layouts(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """Every input freshly laid out, one of them, then the result of a view."""
    odd = [input_ for input_ in program.inputs if not is_contiguous(input_)]
    if len(odd) > 1:
        before = ", ".join(format_strides(input_) for input_ in odd)
        yield Change(program.map_inputs(make_contiguous), "layout", "layout", before, "contiguous inputs")
    for input_ in odd:
        changed = program.with_input(make_contiguous(input_))
        yield Change(changed, "layout", "layout", format_strides(input_), f"contiguous {input_.name}")
    views = [
        (statement, value)
        for statement in program.statements
        if name_operation(statement) in _VIEWS
        and isinstance(value := evaluation.values.get(statement.name), torch.Tensor)
    ]
    for statement, value in views:
        if not value.is_contiguous():
            yield from _without_view(program, statement, value)
            yield _behind(program, statement, "contiguous", "layout")


def change_sharing(program: Program) -> Iterator[Change]:
    """A copy of each value that is used more than once, or that shares the memory of an input, where it is used."""
    for statement in program.statements:
        for name in dict.fromkeys(statement.refs()):
            if _uses(program, name) > 1 and statement.form not in ("enter", "exit", "attribute"):
                copy = Statement(f"{name}_copy", "method", "clone", (Ref(name),))
                yield Change(
                    _first_use(program, statement, name, copy), "sharing", "sharing", name, format_call(copy), True
                )
    for statement in program.statements:
        if statement.writes or (statement.name in program.output_refs() and name_operation(statement) in _VIEWS):
            yield _behind(program, statement, "clone", "sharing")


def change_input_values(program: Program) -> Iterator[Change]:
    """Zeros for whole numbers, random numbers for those that are all alike, then random numbers from [0, 1)."""
    for input_ in program.inputs:
        if input_.dtype.is_floating_point or input_.dtype.is_complex:
            if input_.fill in ("zeros", "ones", "arange", "literal"):
                yield _change_values(program, replace(input_, fill="randn", values=None))
        elif input_.dtype is not torch.bool and input_.fill != "zeros":
            yield _change_values(program, replace(input_, fill="zeros", values=None))
    for input_ in program.inputs:
        if input_.dtype.is_floating_point and input_.fill in ("randn", "recorded"):
            yield _change_values(program, replace(input_, fill="rand", values=None))


def change_sizes(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """2 for 1 and for 0, 1 dimension for none; then one more for every size, in all its places together.

    Of a program that eager refuses, also 1 for a size in one place.
    """
    yield from _sizes_made(program)
    for input_ in program.inputs:
        if not input_.shape:
            values = None if input_.values is None else input_.values.reshape(1)
            yield _change_input_shape(program, replace(input_, shape=(1,), stride=(1,), values=values), "no dimension")
    for small in (1, 0):
        named = f"size of {small}"
        places = [(input_, place) for input_ in program.inputs for place, n in enumerate(input_.shape) if n == small]
        if len(places) > 1:
            yield Change(_grow_size(program, small, 2), "size", named, named, "size of 2")
        for input_, place in places:
            yield _change_input_shape(program, _reshape_input(input_, _put(input_.shape, place, 2)), named)
    for size in sorted({n for input_ in program.inputs for n in input_.shape if n > 1}):
        yield Change(_grow_size(program, size, size + 1), "size", "size", f"size of {size}", f"size of {size + 1}")
    if evaluation.failed is not None:
        places = [(input_, place) for input_ in program.inputs for place, n in enumerate(input_.shape) if n > 1]
        for input_, place in places:
            yield _change_input_shape(program, resize_input(input_, _put(input_.shape, place, 1)), "size")


def _sizes_made(program: Program) -> Iterator[Change]:
    """Another size for a tensor that a statement makes."""
    for statement in program.statements:
        shape = statement.args[0] if name_operation(statement) in _MAKING and statement.args else None
        if not isinstance(shape, tuple | list) or not all(type(size) is int for size in shape):
            continue
        wanted = {place: [*shape[:place], 2, *shape[place + 1 :]] for place, size in enumerate(shape) if size == 1}
        for changed in [[1]] if not shape else wanted.values():
            after = replace(statement, args=(type(shape)(changed), *statement.args[1:]))
            named = "size of 1" if shape else "no dimension"
            yield Change(program.with_statement(after), "size", named, format_call(statement), format_call(after))


# -- private --------------------------------------------------------------------------------------


def _find_dtypes(program: Program) -> list[torch.dtype]:
    written: list[torch.dtype] = []

    def leaf(value: object) -> None:
        if isinstance(value, torch.dtype):
            written.append(value)

    for statement in program.statements:
        map_leaves(leaf, (statement.args, statement.kwargs))
    return written


def _all_in(program: Program, dtype: torch.dtype) -> Program:
    """The program with every floating tensor in one dtype."""
    changed = program.map_inputs(lambda input_: _cast(input_, dtype) if input_.dtype.is_floating_point else input_)
    return changed.map_statements(lambda statement: _recast(statement, dtype))


def _cast(input_: Input, dtype: torch.dtype) -> Input:
    if dtype.is_floating_point == input_.dtype.is_floating_point:
        values = None if input_.values is None else input_.values.to(dtype)
        return replace(input_, dtype=dtype, values=values)
    return replace(input_, dtype=dtype, fill="randn" if dtype.is_floating_point else "zeros", values=None)


def _recast(statement: Statement, dtype: torch.dtype) -> Statement:
    """The statement with another dtype wherever it writes a floating one."""

    def leaf(value: object) -> object:
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    if statement.form == "method" and statement.target in ("half", "float", "double", "bfloat16"):
        return replace(statement, target="to", args=(statement.args[0], dtype))
    return statement.map_leaves(leaf)


def _behind(program: Program, statement: Statement, method: str, kind: str) -> Change:
    """The program with a method called on the result of a statement."""
    added = Statement(f"{statement.name}_{method}", "method", method, (Ref(statement.name),))
    place = program.statements.index(statement) + 1
    rest = replace(program, inputs=(), statements=program.statements[place:]).rename({statement.name: added.name})
    statements = (*program.statements[:place], added, *rest.statements)
    changed = replace(program, statements=statements, outputs=rest.outputs)
    text = format_call(statement)
    return Change(changed, kind, kind, text, f"{text}.{method}()", hides=True)


def _without_view(program: Program, statement: Statement, value: torch.Tensor) -> Iterator[Change]:
    """The program that gets the result of a view of an input as an input, freshly laid out."""
    viewed = program.input(statement.refs()[0])
    if viewed is None or _uses(program, viewed.name) > 1 or len(set(statement.refs())) > 1:
        return
    fresh = Input.from_tensor(viewed.name, value.contiguous())
    fresh = replace(fresh, fill=viewed.fill, requires_grad=viewed.requires_grad, parameter=viewed.parameter)
    fresh = replace(fresh, values=value.contiguous() if viewed.fill in ("recorded", "literal") else None)
    changed = replace(program.with_input(fresh), statements=tuple(s for s in program.statements if s is not statement))
    changed = replace(changed.rename({statement.name: viewed.name}), inputs=changed.inputs)
    yield Change(changed, "layout", "layout", format_call(statement), f"contiguous {viewed.name}", hides=True)


def _first_use(program: Program, user: Statement, name: str, copy: Statement) -> Program:
    """The program in which one statement uses a copy of a value, in the last place where it uses the value."""
    left = user.refs().count(name)

    def put(ref: Ref) -> Ref:
        nonlocal left
        left -= ref.name == name
        return Ref(copy.name) if ref.name == name and left == 0 else ref

    place = program.statements.index(user)
    changed = (copy, user.map_refs(put))
    return replace(program, statements=(*program.statements[:place], *changed, *program.statements[place + 1 :]))


def _uses(program: Program, name: str) -> int:
    return find_refs([*((s.args, s.kwargs) for s in program.statements), program.outputs]).count(name)


def _describe_use(program: Program, name: str) -> str:
    """The operation and the argument that an input is first used for."""
    for statement in program.statements:
        for argument in list_arguments(statement):
            if name in find_refs(argument.value):
                return f"{name_operation(statement)}({argument.name})"
    return "values"


def _change_values(program: Program, changed: Input) -> Change:
    before = program.input(changed.name)
    assert before is not None
    return Change(
        program.with_input(changed),
        "value",
        _describe_use(program, changed.name),
        f"{changed.name} = {input_expression(before)}",
        f"{changed.name} = {input_expression(changed)}",
    )


def _grow_size(program: Program, size: int, wanted: int) -> Program:
    """The program with another size for one size in all inputs."""

    def grow(input_: Input) -> Input:
        shape = tuple(wanted if n == size else n for n in input_.shape)
        return input_ if shape == input_.shape else _reshape_input(input_, shape)

    return program.map_inputs(grow)


def _reshape_input(input_: Input, shape: tuple[int, ...]) -> Input:
    """The input in another shape; of values that are written out there are none for more elements."""
    if input_.fill in ("literal", "recorded"):
        input_ = replace(input_, fill="randn" if input_.dtype.is_floating_point else "zeros")
    return resize_input(input_ if input_.fill == "randint" else replace(input_, values=None), shape)


def _put(shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
    return (*shape[:place], size, *shape[place + 1 :])


def _change_input_shape(program: Program, changed: Input, fingerprint: str) -> Change:
    before = program.input(changed.name)
    assert before is not None
    return Change(program.with_input(changed), "size", fingerprint, format_shape(before), format_shape(changed))


_OTHER_OPERATOR = {"/": "*", "*": "/", "-": "+", "+": "-", "+=": "-=", "*=": "/=", "<": "<=", ">": ">="}
# What these say is no part of what an operation computes.
_ASIDE = ("device", "layout", "pin_memory", "memory_format", "generator", "size", "self", "copy", "non_blocking")


def generate_changes(program: Program) -> Iterator[Change]:
    """Programs one change away that run in eager, without duplicates."""
    return _select_running(program, _all(program, evaluate(program)))


def generate_substitutes(program: Program) -> Iterator[Change]:
    """Programs that compute something else at one place, and run in eager: another dtype or operator is written there.

    They say where a bug is, and not why.
    """
    changed = (change for statement in program.statements for change in _substitute(program, statement))
    return _select_running(program, chain(_widen_integers(program), changed))


def _widen_integers(program: Program) -> Iterator[Change]:
    for input_ in program.inputs:
        if not (input_.dtype.is_floating_point or input_.dtype.is_complex or input_.dtype is torch.bool):
            values = None if input_.values is None else input_.values.to(torch.int64)
            wide = replace(input_, dtype=torch.int64, values=values)
            before, after = (f"{input_.name} of {format_dtype(kind)}" for kind in (input_.dtype, wide.dtype))
            yield Change(program.with_input(wide), "dtype", "dtype", before, after)


def _select_running(program: Program, changes: Iterable[Change]) -> Iterator[Change]:
    seen = [program]
    for change in changes:
        if change.program not in seen:
            seen.append(change.program)
            if evaluate(change.program).failed is None:
                yield change


def _substitute(program: Program, statement: Statement) -> Iterator[Change]:
    text = format_call(statement)
    for dtype in (torch.float32, torch.int64):

        def put(leaf: object, dtype: torch.dtype = dtype) -> object:
            return dtype if isinstance(leaf, torch.dtype) else leaf

        changed = statement.map_leaves(put)
        yield Change(program.with_statement(changed), "dtype", "dtype", text, format_call(changed), statement=changed)
    other = _OTHER_OPERATOR.get(statement.target) if statement.form == "operator" else None
    if other is not None:
        changed = replace(statement, target=other)
        yield Change(program.with_statement(changed), "argument", text, text, format_call(changed), statement=changed)


def _all(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    statements = [_Statement(program, statement, evaluation) for statement in program.statements]

    def each(*ways: Callable[[_Statement], Iterator[Change]]) -> Iterator[Change]:
        for way in ways:
            yield from _group_changes(program, [change for statement in statements for change in way(statement)])

    yield from each(_Statement.defaults, _Statement.last_dimension, _Statement.order, _Statement.permutation)
    yield from change_dtypes(program)
    yield from change_layouts(program, evaluation)
    yield from change_sharing(program)
    yield from each(_Statement.numbers)
    yield from change_input_values(program)
    yield from change_sizes(program, evaluation)
    yield from each(_Statement.first_dimension, _Statement.flags)
    yield from _by_keyword(program)


def _group_changes(program: Program, offered: Sequence[Change]) -> Iterator[Change]:
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

    def respell(statement: Statement) -> Statement:
        given = list_arguments(statement)[1:] if statement.form == "function" else []
        moved = {argument.name: argument.value for argument in given if isinstance(argument.where, int)}
        if not moved or any(not name.isidentifier() for name in moved):
            return statement
        return replace(statement, args=statement.args[:1], kwargs={**moved, **statement.kwargs})

    pairs = [(statement, respell(statement)) for statement in program.statements]
    changed = [(format_call(before), format_call(after)) for before, after in pairs if before is not after]
    if changed:
        yield Change(program.map_statements(respell), "argument", "positional arguments", *changed[0])


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
            if any(_from_end(dimension, rank) != -1 for dimension in _list_dimensions(argument.value)):
                yield self._with(argument, _format_like(argument.value, -1))

    def first_dimension(self) -> Iterator[Change]:
        """The first dimension for the last."""
        for argument, rank in self._dimensions():
            if rank > 1 and [_from_end(dimension, rank) for dimension in _list_dimensions(argument.value)] == [-1]:
                yield self._with(argument, _format_like(argument.value, 0))

    def order(self) -> Iterator[Change]:
        """Listed tensors in the order in which the program makes them."""
        made = [*(value.name for value in self.program.inputs), *(value.name for value in self.program.statements)]
        for argument in self._arguments():
            value = argument.value
            if isinstance(value, tuple | list) and len(value) > 1 and all(isinstance(part, Ref) for part in value):
                yield self._with(argument, type(value)(sorted(value, key=lambda ref: made.index(ref.name))))

    def permutation(self) -> Iterator[Change]:
        """An order of dimensions that swaps the last two among others, in two steps: the same tensor."""
        dims = self._find_permutation()
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
        text = f"{format_call(inner)}.transpose(-2, -1)"
        yield Change(program, "argument", "permute(dims)", format_call(self.statement), text, hides=True)

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

    def _arguments(self) -> list[StatementArgument]:
        if self.statement.form in ("getitem", "setitem", "attribute", "enter", "exit"):
            return []
        return [argument for argument in list_arguments(self.statement) if argument.name not in _ASIDE]

    def _dimensions(self) -> Iterator[tuple[StatementArgument, int]]:
        """The arguments that name dimensions to work along, with the rank of the tensor."""
        tensor = next(iter(self.statement.refs()), None)
        known = self.evaluation.get_shape(tensor) if tensor is not None else None
        if known is None or name_operation(self.statement) == "permute":
            return
        rank = len(known[0]) + (name_operation(self.statement) in ("stack", "unsqueeze"))
        for argument in self._arguments():
            if argument.name in ("dim", "dims") and _list_dimensions(argument.value):
                yield argument, rank

    def _find_permutation(self) -> list[int] | None:
        """The order of dimensions that the statement makes; None if it makes none."""
        if name_operation(self.statement) != "permute" or not self.statement.refs():
            return None
        known = self.evaluation.get_shape(self.statement.refs()[0])
        if known is None or len(self.statement.refs()) != 1:
            return None
        # A tensor whose sizes are its dimensions shows where each of them goes.
        marked = torch.empty(tuple(range(2, len(known[0]) + 2)), device="meta")
        name = self.statement.name
        values = {self.statement.refs()[0]: marked, "torch": torch}
        try:
            exec(f"{name} = {format_call(self.statement)}", values)
        except (RuntimeError, TypeError, AttributeError, IndexError):
            return None
        result = values[name]
        return [size - 2 for size in result.shape] if isinstance(result, torch.Tensor) else None

    def _with(self, argument: StatementArgument, value: object, *, kind: str = "argument") -> Change:
        statement = self.statement
        if isinstance(argument.where, str):
            changed = replace(statement, kwargs={**statement.kwargs, argument.where: value})
            before, after = (f"{argument.where}={_text(text)}" for text in (argument.value, value))
        else:
            args = (*statement.args[: argument.where], value, *statement.args[argument.where + 1 :])
            changed = replace(statement, args=args)
            before, after = format_call(statement), format_call(changed)
        fingerprint = f"{name_operation(statement)}({argument.name})"
        program = self.program.with_statement(changed).without_dead_code()
        return Change(program, kind, fingerprint, before, after, statement=changed)


def _text(value: object) -> str:
    return value.name if isinstance(value, Ref) else format_literal(value, _text)


def _same(value: object, default: object) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return value is default
    return not isinstance(value, Ref) and value == default


def _list_dimensions(value: object) -> list[int]:
    """The dimensions in an argument, one or several."""
    listed = value if isinstance(value, tuple | list) else [value]
    return [d for d in listed if isinstance(d, int) and not isinstance(d, bool)]


def _format_like(value: object, dimension: int) -> object:
    return type(value)([dimension]) if isinstance(value, tuple | list) else dimension


def _from_end(dimension: int, rank: int) -> int:
    return dimension - rank if dimension >= 0 else dimension
