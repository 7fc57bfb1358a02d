"""The programs one change away from a program, each with the change in words, in the order in which they are tried.

What is unusual is replaced by what is usual first: such a change says most. The kinds follow one another in a fixed
order, so that one cause has one name in programs of different sizes.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from fuzzcompile.programs.ir.case_source import Writer, input_expression, is_contiguous, make_contiguous, resize_input
from fuzzcompile.programs.ir.evaluation import Evaluation, evaluate
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement, find_refs, map_leaves
from fuzzcompile.programs.ir.tracing import OPERATORS
from fuzzcompile.run.tensors import is_inexact


@dataclass(frozen=True)
class Change:
    """A program one change away from another.

    ``kind`` is ``argument``, ``dtype``, ``layout``, ``sharing``, ``value``, ``size`` or ``gradient``, ``fingerprint``
    what was changed, in words that hang on neither sizes nor names; ``after`` replaces ``before``, as a user writes
    them. It ``hides`` if an operator was put between two others, so that it says little if a pattern matches no more.
    ``statement`` is the changed one, where only one was.
    """

    program: Program
    kind: str
    fingerprint: str
    before: str
    after: str
    hides: bool = False
    statement: Statement | None = None


def generate_changes(program: Program, *, copies_first: bool = False) -> Iterator[Change]:
    """Programs one change away that run in eager, without duplicates; copies of results before all others, if asked."""
    copies = _copy_results(program) if copies_first else ()
    return _select_running(program, chain(copies, _list_all(program, evaluate(program))))


def generate_substitutes(program: Program) -> Iterator[Change]:
    """Programs that compute something else at one place, and run in eager: another dtype or operator is written there.

    They say where a bug is, and not why.
    """
    integers = (x for x in program.inputs if not is_inexact(x.dtype))
    widened = (_change_dtype(program, x, torch.int64) for x in integers if x.dtype is not torch.bool)
    changed = (change for statement in program.statements for change in _substitute(program, statement))
    return _select_running(program, chain(widened, changed))


def _select_running(program: Program, changes: Iterable[Change]) -> Iterator[Change]:
    seen = [program]
    for change in changes:
        if change.program not in seen:
            seen.append(change.program)
            if evaluate(change.program).failed is None:
                yield change


def _list_all(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    statements = [_Statement(program, statement, evaluation) for statement in program.statements]

    def each(*ways: Callable[[_Statement], Iterator[Change]]) -> Iterator[Change]:
        for way in ways:
            yield from _group_changes(program, [change for statement in statements for change in way(statement)])

    yield from each(_Statement.defaults, _Statement.last_dimension, _Statement.order, _Statement.permutation)
    yield from _change_dtypes(program)
    yield from _change_layouts(program, evaluation)
    yield from _change_sharing(program)
    yield from each(_Statement.numbers)
    yield from _change_input_values(program)
    yield from _change_sizes(program, evaluation)
    yield from each(_Statement.first_dimension, _Statement.flags)
    yield from _require_gradients(program)
    yield from _name_arguments(program)


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


def _format_call(statement: Statement) -> str:
    return Writer(set()).expression(statement)[0]


# What tensors are: their dtypes, layouts, what shares them, their values and sizes.

# Functions that take the shape of what they make.
_MAKING = ("full", "ones", "zeros", "empty", "randn", "rand")
# Statements after which a tensor may be laid out in another way than a fresh one.
_VIEWS = ("permute", "expand", "as_strided", "unfold", "diagonal", "getitem")
# Methods that cast, by the dtype that they cast to.
_CASTS = {torch.float16: "half", torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}


def _format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _change_dtypes(program: Program) -> Iterator[Change]:
    """All floating tensors in float32 (or, where they are, in float64), then one input in the dtype of the others."""
    leaves: list[object] = [input_.dtype for input_ in program.inputs]
    map_leaves(leaves.append, [(statement.args, statement.kwargs) for statement in program.statements])
    present = {leaf for leaf in leaves if isinstance(leaf, torch.dtype)}
    floating = sorted((dtype for dtype in present if dtype.is_floating_point), key=str)
    for wanted in (torch.float32, torch.float64):
        if floating and set(floating) != {wanted}:
            names = " and ".join(_format_dtype(dtype) for dtype in floating if dtype is not wanted)
            yield Change(cast_floating(program, wanted), "dtype", "dtype", names, _format_dtype(wanted))
    counted = Counter(input_.dtype for input_ in program.inputs)
    usual = [dtype for dtype, _ in counted.most_common()] + [torch.float32]
    for input_ in program.inputs:
        for dtype in dict.fromkeys(usual):
            if dtype is not input_.dtype and not input_.dtype.is_complex:
                yield _change_dtype(program, input_, dtype)


def _change_dtype(program: Program, input_: Input, dtype: torch.dtype) -> Change:
    before, after = (f"{input_.name} of {_format_dtype(kind)}" for kind in (input_.dtype, dtype))
    return Change(program.with_input(_cast(input_, dtype)), "dtype", "dtype", before, after)


def cast_floating(program: Program, dtype: torch.dtype) -> Program:
    """The program with every floating tensor in one dtype, in inputs and in statements."""

    def recast(statement: Statement) -> Statement:
        if statement.form == "method" and statement.target in _CASTS.values():
            return replace(statement, target=_CASTS[dtype])
        return statement.map_leaves(
            lambda leaf: dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
        )

    changed = program.map_inputs(lambda input_: _cast(input_, dtype) if input_.dtype.is_floating_point else input_)
    return changed.map_statements(recast)


def _cast(input_: Input, dtype: torch.dtype) -> Input:
    if dtype.is_floating_point == input_.dtype.is_floating_point:
        return replace(input_, dtype=dtype, values=None if input_.values is None else input_.values.to(dtype))
    return replace(input_, dtype=dtype, fill="randn" if dtype.is_floating_point else "zeros", values=None)


def _change_layouts(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """Every input freshly laid out, one of them, then the result of a view."""
    odd = {x.name: f"{x.name} with strides {x.stride}" for x in program.inputs if not is_contiguous(x)}
    if len(odd) > 1:
        changed = lay_out_freshly(program, odd)
        yield Change(changed, "layout", "layout", ", ".join(odd.values()), "contiguous inputs")
    for name, before in odd.items():
        yield Change(lay_out_freshly(program, [name]), "layout", "layout", before, f"contiguous {name}")
    for statement in program.statements:
        value = evaluation.values.get(statement.name) if name_operation(statement) in _VIEWS else None
        if isinstance(value, torch.Tensor) and not value.is_contiguous():
            yield from _without_view(program, statement, value)
            yield _call_behind(program, statement, "contiguous", "layout")


def lay_out_freshly(program: Program, names: Iterable[str]) -> Program:
    """The program with contiguous inputs of these names."""
    wanted = set(names)
    return program.map_inputs(lambda input_: make_contiguous(input_) if input_.name in wanted else input_)


def _call_behind(program: Program, statement: Statement, method: str, kind: str) -> Change:
    """The program with a method called on the result of a statement."""
    added = Statement(f"{statement.name}_{method}", "method", method, (Ref(statement.name),))
    place = program.statements.index(statement) + 1
    rest = replace(program, inputs=(), statements=program.statements[place:]).rename({statement.name: added.name})
    statements = (*program.statements[:place], added, *rest.statements)
    changed = replace(program, statements=statements, outputs=rest.outputs)
    text = _format_call(statement)
    return Change(changed, kind, kind, text, f"{text}.{method}()", hides=True)


def _without_view(program: Program, statement: Statement, value: torch.Tensor) -> Iterator[Change]:
    """The program that gets the result of a view of an input as an input, freshly laid out."""
    viewed = program.input(statement.refs()[0])
    if viewed is None or program.count_uses(viewed.name) > 1 or len(set(statement.refs())) > 1:
        return
    fresh = Input.from_tensor(viewed.name, value.contiguous())
    kept = fresh.values if viewed.fill in ("recorded", "literal", "full") else None
    fresh = replace(viewed, shape=fresh.shape, stride=fresh.stride, dtype=fresh.dtype, values=kept)
    changed = replace(program.with_input(fresh), statements=tuple(s for s in program.statements if s is not statement))
    changed = replace(changed.rename({statement.name: viewed.name}), inputs=changed.inputs)
    yield Change(changed, "layout", "layout", _format_call(statement), f"contiguous {viewed.name}", hides=True)


def _change_sharing(program: Program) -> Iterator[Change]:
    """A copy of each value that is used more than once, or that shares the memory of an input, where it is used."""
    for statement in program.statements:
        for name in dict.fromkeys(statement.refs()):
            if program.count_uses(name) > 1 and statement.form not in ("enter", "exit", "attribute"):
                copy = Statement(f"{name}_copy", "method", "clone", (Ref(name),))
                changed = _use_copy(program, statement, name, copy)
                yield Change(changed, "sharing", "sharing", name, _format_call(copy), True)
    yield from _copy_results(program)


def _copy_results(program: Program) -> Iterator[Change]:
    """A copy of each result that is returned, or of what something is written into, so that it shares no memory."""
    written = {name for statement in program.statements if statement.writes for name in statement.refs()[:1]}
    for statement in program.statements:
        if statement.writes or statement.name in {*program.output_refs(), *written}:
            yield _call_behind(program, statement, "clone", "sharing")


def _use_copy(program: Program, user: Statement, name: str, copy: Statement) -> Program:
    """The program in which one statement uses a copy of a value, in the last place where it uses the value."""
    left = user.refs().count(name)

    def put(ref: Ref) -> Ref:
        nonlocal left
        left -= ref.name == name
        return Ref(copy.name) if ref.name == name and left == 0 else ref

    return program.replace_statement(user, copy, user.map_refs(put))


def _change_input_values(program: Program) -> Iterator[Change]:
    """Zeros for whole numbers, random numbers for those that are all alike, then random numbers from [0, 1)."""
    for input_ in program.inputs:
        if is_inexact(input_.dtype):
            if input_.fill in ("zeros", "ones", "arange", "literal", "full"):
                yield _change_values(program, input_, replace(input_, fill="randn", values=None))
        elif input_.dtype is not torch.bool and input_.fill != "zeros":
            yield _change_values(program, input_, replace(input_, fill="zeros", values=None))
    for input_ in program.inputs:
        if input_.dtype.is_floating_point and input_.fill in ("randn", "recorded"):
            yield _change_values(program, input_, replace(input_, fill="rand", values=None))


def _change_values(program: Program, before: Input, after: Input) -> Change:
    """Other values for an input; named by the operation and the argument that it is first used for."""
    name = before.name
    uses = (
        f"{name_operation(statement)}({argument.name})"
        for statement in program.statements
        for argument in list_arguments(statement)
        if name in find_refs(argument.value)
    )
    old, new = (f"{name} = {input_expression(input_)}" for input_ in (before, after))
    return Change(program.with_input(after), "value", next(uses, "values"), old, new)


def _change_sizes(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """2 for 1 and for 0, 1 dimension for none; then one more for every size, in all its places together.

    Of a program that eager refuses, also 1 for a size in one place.
    """
    yield from _change_made_sizes(program)
    for input_ in program.inputs:
        if not input_.shape:
            values = None if input_.values is None else input_.values.reshape(1)
            after = replace(input_, shape=(1,), stride=(1,), values=values)
            yield _change_shape(program, input_, after, "no dimension")
    places = [(input_, place, size) for input_ in program.inputs for place, size in enumerate(input_.shape)]
    for small in (1, 0):
        named = f"size of {small}"
        here = [(input_, place) for input_, place, size in places if size == small]
        if len(here) > 1:
            yield Change(_grow_size(program, small, 2), "size", named, named, "size of 2")
        for input_, place in here:
            yield _change_shape(program, input_, _reshape_input(input_, _put(input_.shape, place, 2)), named)
    for size in sorted({size for _, _, size in places if size > 1}):
        yield Change(_grow_size(program, size, size + 1), "size", "size", f"size of {size}", f"size of {size + 1}")
    for input_, place, size in places if evaluation.failed is not None else ():
        if size > 1:
            yield _change_shape(program, input_, resize_input(input_, _put(input_.shape, place, 1)), "size")


def _change_made_sizes(program: Program) -> Iterator[Change]:
    for statement in program.statements:
        shape = statement.args[0] if name_operation(statement) in _MAKING and statement.args else None
        if not isinstance(shape, tuple | list) or not all(type(size) is int for size in shape):
            continue
        wanted = [_put(tuple(shape), place, 2) for place, size in enumerate(shape) if size == 1] if shape else [(1,)]
        for changed in wanted:
            after = replace(statement, args=(type(shape)(changed), *statement.args[1:]))
            named = "size of 1" if shape else "no dimension"
            yield Change(program.with_statement(after), "size", named, _format_call(statement), _format_call(after))


def _change_shape(program: Program, before: Input, after: Input, fingerprint: str) -> Change:
    old, new = (f"{input_.name} of shape {input_.shape}" for input_ in (before, after))
    return Change(program.with_input(after), "size", fingerprint, old, new)


def _grow_size(program: Program, size: int, wanted: int) -> Program:

    def grow(input_: Input) -> Input:
        shape = tuple(wanted if n == size else n for n in input_.shape)
        return input_ if shape == input_.shape else _reshape_input(input_, shape)

    return program.map_inputs(grow)


def _reshape_input(input_: Input, shape: tuple[int, ...]) -> Input:
    """The input in another shape; of values that are written out there are none for more elements."""
    if input_.fill in ("literal", "recorded"):
        input_ = replace(input_, fill="randn" if input_.dtype.is_floating_point else "zeros")
    return resize_input(input_ if input_.fill in ("randint", "full") else replace(input_, values=None), shape)


def _put(shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
    return (*shape[:place], size, *shape[place + 1 :])


# What a statement says: its arguments and its operator.

_OTHER_OPERATOR = {"/": "*", "*": "/", "-": "+", "+": "-", "+=": "-=", "*=": "/=", "<": "<=", ">": ">="}
# What these say is no part of what an operation computes.
_ASIDE = ("device", "layout", "pin_memory", "memory_format", "generator", "size", "self", "copy", "non_blocking")


def _substitute(program: Program, statement: Statement) -> Iterator[Change]:
    text = _format_call(statement)

    def put(kind: str, fingerprint: str, changed: Statement) -> Change:
        after = _format_call(changed)
        return Change(program.with_statement(changed), kind, fingerprint, text, after, statement=changed)

    for dtype in (torch.float32, torch.int64):
        cast = functools.partial(lambda dtype, leaf: dtype if isinstance(leaf, torch.dtype) else leaf, dtype)
        yield put("dtype", "dtype", statement.map_leaves(cast))
    if statement.form == "operator" and statement.target in _OTHER_OPERATOR:
        yield put("argument", text, replace(statement, target=_OTHER_OPERATOR[statement.target]))


def _require_gradients(program: Program) -> Iterator[Change]:
    """Where gradients are recorded and nothing requires one: all floating inputs require them."""
    records = program.settings.get("BACKWARD") or program.settings.get("GRAD") == "enabled"
    floating = [x for x in program.inputs if is_inexact(x.dtype)]
    if records and floating and not any(x.requires_grad for x in program.inputs):
        changed = program.map_inputs(lambda x: replace(x, requires_grad=True) if is_inexact(x.dtype) else x)
        name = floating[0].name
        yield Change(changed, "gradient", "no gradient required", name, f"{name}.requires_grad_()")


def _name_arguments(program: Program) -> Iterator[Change]:
    """Every argument behind the first by its keyword: the same program."""

    def respell(statement: Statement) -> Statement:
        given = list_arguments(statement)[1:] if statement.form == "function" else []
        moved = {argument.name: argument.value for argument in given if isinstance(argument.where, int)}
        if not moved or any(not name.isidentifier() for name in moved):
            return statement
        return replace(statement, args=statement.args[:1], kwargs={**moved, **statement.kwargs})

    pairs = [(statement, respell(statement)) for statement in program.statements]
    changed = [(_format_call(before), _format_call(after)) for before, after in pairs if before is not after]
    if changed:
        yield Change(program.map_statements(respell), "argument", "positional arguments", *changed[0])


class _Statement:
    def __init__(self, program: Program, statement: Statement, evaluation: Evaluation) -> None:
        self.program, self.statement, self.evaluation = program, statement, evaluation
        plain = statement.form not in ("getitem", "setitem", "attribute", "enter", "exit")
        self.arguments = [a for a in list_arguments(statement) if a.name not in _ASIDE] if plain else []

    def defaults(self) -> Iterator[Change]:
        """The default of each argument that is given another value."""
        for argument in self.arguments:
            implied = argument.default is None and argument.is_dimension  # from the number of dimensions
            flag = isinstance(argument.value, bool) or isinstance(argument.default, bool)
            same = argument.value is argument.default if flag else argument.value == argument.default
            if argument.has_default and not implied and not same:
                yield self._with(argument, argument.default)

    def last_dimension(self) -> Iterator[Change]:
        yield from self._move_dimension(-1, lambda dimensions, _: dimensions != [-1] * len(dimensions))

    def first_dimension(self) -> Iterator[Change]:
        yield from self._move_dimension(0, lambda dimensions, rank: rank > 1 and dimensions == [-1])

    def order(self) -> Iterator[Change]:
        """Listed tensors in the order in which the program makes them."""
        made = [*(value.name for value in self.program.inputs), *(value.name for value in self.program.statements)]
        for argument in self.arguments:
            value = argument.value
            if isinstance(value, tuple | list) and len(value) > 1 and all(isinstance(part, Ref) for part in value):
                yield self._with(argument, type(value)(sorted(value, key=lambda ref: made.index(ref.name))))

    def permutation(self) -> Iterator[Change]:
        """An order of dimensions that swaps the last two among others, in two steps: the same tensor."""
        dims, name = self._find_permutation(), self.statement.name
        if dims is None or len(dims) < 3 or dims[-2] < dims[-1] or dims[:-2] == list(range(len(dims) - 2)):
            return
        inner = Statement(f"{name}_plain", "method", "permute", (self.statement.args[0], *dims[:-2], *dims[:-3:-1]))
        outer = Statement(name, "method", "transpose", (Ref(inner.name), -2, -1))
        program = self.program.replace_statement(self.statement, inner, outer)
        text = f"{_format_call(inner)}.transpose(-2, -1)"
        yield Change(program, "argument", "permute(dims)", _format_call(self.statement), text, hides=True)

    def numbers(self) -> Iterator[Change]:
        """1 for a number that has no default, and 2 for 1."""
        for argument in self.arguments:
            value = argument.value
            if argument.has_default or argument.is_dimension or isinstance(value, bool):
                continue
            if isinstance(value, float) or (isinstance(value, int) and self.statement.form == "operator"):
                yield self._with(argument, type(value)(2 if value == 1 else 1), kind="value")

    def flags(self) -> Iterator[Change]:
        for argument in self.arguments:
            if isinstance(argument.value, bool):
                yield self._with(argument, not argument.value)

    def _move_dimension(self, wanted: int, applies: Callable[[list[int], int], bool]) -> Iterator[Change]:
        """Another dimension to work along, where it ``applies`` to those given (counted from the end) and the rank."""
        tensor, operation = next(iter(self.statement.refs()), None), name_operation(self.statement)
        known = self.evaluation.get_shape(tensor) if tensor is not None else None
        if known is None or operation == "permute":
            return
        rank = len(known[0]) + (operation in ("stack", "unsqueeze"))
        for argument in self.arguments:
            value = argument.value
            listed = value if isinstance(value, tuple | list) else [value]
            dimensions = [d - rank if d >= 0 else d for d in listed if type(d) is int]
            if argument.name in ("dim", "dims") and dimensions and applies(dimensions, rank):
                yield self._with(argument, type(value)([wanted]) if isinstance(value, tuple | list) else wanted)

    def _find_permutation(self) -> list[int] | None:
        refs = self.statement.refs()
        known = self.evaluation.get_shape(refs[0]) if len(refs) == 1 else None
        if name_operation(self.statement) != "permute" or known is None:
            return None
        # A tensor whose sizes are its dimensions shows where each of them goes.
        marked = torch.empty(tuple(range(2, len(known[0]) + 2)), device="meta")
        try:
            result = eval(_format_call(self.statement), {refs[0]: marked, "torch": torch})
        except (RuntimeError, TypeError, AttributeError, IndexError):
            return None
        return [size - 2 for size in result.shape] if isinstance(result, torch.Tensor) else None

    def _with(self, argument: StatementArgument, value: object, *, kind: str = "argument") -> Change:
        statement = self.statement
        if isinstance(argument.where, str):
            changed = replace(statement, kwargs={**statement.kwargs, argument.where: value})
            before, after = (f"{argument.where}={Writer(set()).text(text)}" for text in (argument.value, value))
        else:
            args = (*statement.args[: argument.where], value, *statement.args[argument.where + 1 :])
            changed = replace(statement, args=args)
            before, after = _format_call(statement), _format_call(changed)
        fingerprint = f"{name_operation(statement)}({argument.name})"
        program = self.program.with_statement(changed).without_dead_code()
        return Change(program, kind, fingerprint, before, after, statement=changed)


# Ways to write another order of dimensions: the compiler has one operator for all of them.
PERMUTATIONS = (
    "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mT", "T", "adjoint", "mH", "H",
)  # fmt: skip
_ONE_NAME = {
    **dict.fromkeys(PERMUTATIONS, "permute"), "truediv": "div", "divide": "div", "true_divide": "div",
    "multiply": "mul", "subtract": "sub", "concat": "cat", "concatenate": "cat", "iadd": "add", "isub": "sub",
    "imul": "mul", "itruediv": "div", "ipow": "pow", "_softmax": "softmax", "_log_softmax": "log_softmax",
    **dict.fromkeys(("float", "double", "half", "bfloat16", "int", "long", "bool", "type"), "to"),
}  # fmt: skip
_SAME_ARGUMENT = {"axis": "dim", "axes": "dims", "keepdims": "keepdim", "train": "training", "input": "self"}
# Methods that take numbers one by one where functions take a tuple.
_SPREAD = ("permute", "view", "reshape", "expand", "repeat", "flip", "tile")
_OPERATIONS = {sign: name for name, sign in reversed(OPERATORS.items())}
_ABSENT = object()


@dataclass(frozen=True)
class StatementArgument:
    """An argument of a statement: its name for torch (``dim`` for ``axis``), and its keyword or position (``where``).

    ``default`` is as torch fills it in; ``has_default`` tells None from none.
    """

    name: str
    where: str | int
    value: object
    default: object = _ABSENT

    @property
    def has_default(self) -> bool:
        """Return whether the argument can be left out."""
        return self.default is not _ABSENT

    @property
    def is_dimension(self) -> bool:
        """Return whether it names dimensions."""
        return self.name in ("dim", "dims", "dim0", "dim1", "start_dim", "end_dim")


def name_operation(statement: Statement) -> str:
    """The operation: ``softmax`` for ``F.softmax``, ``torch.softmax`` and ``.softmax()``, ``add`` for ``+``."""
    if statement.form == "operator":
        name = _OPERATIONS.get(statement.target, statement.target)
    else:
        name = statement.target.rpartition(".")[2]
    if statement.form != "attribute" and name.endswith("_") and not name.endswith("__"):
        name = name.rstrip("_")
    return _ONE_NAME.get(name, name)


def list_arguments(statement: Statement) -> list[StatementArgument]:
    """The arguments that are written into the statement, values of the program among them."""
    names, defaults = list_parameters(statement)
    rest = names[-1] if names and _is_spread(statement) else "argument {}"
    given: list[tuple[str, str | int, object]] = [
        (names[place] if place < len(names) else rest.format(place), place, value)
        for place, value in enumerate(statement.args)
    ]
    return [
        StatementArgument(_SAME_ARGUMENT.get(name, name), where, value, defaults.get(name, _ABSENT))
        for name, where, value in (*given, *((key, key, value) for key, value in statement.kwargs.items()))
    ]


def _is_spread(statement: Statement) -> bool:
    return statement.form == "method" and statement.target in _SPREAD


def list_parameters(statement: Statement) -> tuple[list[str], Mapping[str, object]]:
    """Names of the parameters in order, and the defaults of those that have one."""
    if statement.form == "operator":
        return ["self", "other"], {}
    if statement.form in ("getitem", "setitem", "attribute", "enter", "exit"):
        return ["self", "index", "value"], {}
    for parameters in _find_overloads(statement.form, statement.target):
        if _fits(parameters, statement):
            names = [name for name, _, _ in parameters]
            return names, {name: default for name, default, _ in parameters if default is not _ABSENT}
    return [], {}


# Name, default and whether it takes a tensor; None where that is not declared.
_Parameter = tuple[str, object, bool | None]


@functools.cache
def _find_overloads(form: str, target: str) -> Sequence[Sequence[_Parameter]]:
    space, _, name = target.rpartition(".")
    holder = torch.nn.functional if space == "F" else torch
    function = getattr(holder, name, None) if form == "function" else None
    if inspect.isfunction(function):
        signature = inspect.signature(function).parameters.items()
        return [[(key, _ABSENT if p.default is p.empty else p.default, None) for key, p in signature]]
    packet = getattr(torch.ops.aten, name.rstrip("_") or name, None)
    overloads = (getattr(packet, overload) for overload in packet.overloads()) if packet is not None else ()
    return [
        [(a.name, a.default_value if a.has_default_value() else _ABSENT, "Tensor" in str(a.type)) for a in arguments]
        for arguments in (overload._schema.arguments for overload in overloads)
    ]


def _fits(parameters: Sequence[_Parameter], statement: Statement) -> bool:
    names = [name for name, _, _ in parameters]
    if not {_SAME_ARGUMENT.get(key, key) for key in statement.kwargs} <= {_SAME_ARGUMENT.get(n, n) for n in names}:
        return False
    if len(statement.args) > len(names):
        return _is_spread(statement)
    tensors = zip(statement.args, parameters, strict=False)
    firsts = (
        (value[0] if isinstance(value, tuple | list) and value else value, takes) for value, (*_, takes) in tensors
    )
    return all(takes is None or takes == isinstance(first, Ref) for first, takes in firsts)
