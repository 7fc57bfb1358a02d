"""Operator programs, their productions by name, and the typed values and scope that these write statements with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from string import ascii_lowercase

from fuzzcompile.fuzz.generation.inputs import (
    alters_inputs,
    find_input_shape,
    fit_spec,
    list_activations,
    list_call_dims,
    resolve_shape,
    takes_x,
)
from fuzzcompile.fuzz.generation.spec import CaseSpec, OperatorProgram, Pen, ProgramArgument
from fuzzcompile.programs.edits.tensor_values import LAYOUTS

# A size in each call of the case.
Dim = tuple[int, ...]
Shape = tuple[Dim, ...]

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8")
DTYPES = (*FLOATING, *INTEGERS, "bool")
# The bytes of an element.
WIDTHS = dict(zip(DTYPES, (2, 2, 4, 8, 1, 2, 4, 8, 1, 1), strict=True))


@dataclass(frozen=True)
class ProgramValue:
    """A tensor that a program has made or was given.

    ``name`` is the expression that reads it, ``root`` the value whose memory it may share (itself if it has its own),
    ``gradient`` whether it depends on an input's gradient. Writing to a ``frozen`` value is refused or undefined:
    elements overlap, it is a parameter, or one of several views.
    """

    name: str
    shape: Shape
    dtype: str
    root: str
    gradient: bool = False
    frozen: bool = False

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_floating(self) -> bool:
        """True if it holds floating-point numbers."""
        return self.dtype in FLOATING

    @property
    def is_integral(self) -> bool:
        """True if it holds integers, not booleans."""
        return self.dtype in INTEGERS


def count_elements(shape: Shape) -> Dim:
    """Count the elements of a tensor of that shape in each call; () for a shape without axes, which has one."""
    return tuple(prod(sizes) for sizes in zip(*shape, strict=True))


def fill_size(number: int, like: Dim) -> Dim:
    """A size that is the same number in every call."""
    return (number,) * len(like)


def broadcast_shapes(first: Shape, second: Shape) -> Shape | None:
    """The shape that two shapes broadcast to, or None."""
    if len(first) < len(second):
        first, second = second, first
    joined = list(first)
    for at in range(1, len(second) + 1):
        if first[-at] != second[-at] and set(second[-at]) != {1}:
            if set(first[-at]) != {1}:
                return None
            joined[-at] = second[-at]
    return tuple(joined)


def promote_dtypes(*dtypes: str) -> str:
    """The dtype of an operation on tensors that all have axes (torch's promotion lattice)."""
    floating = set(dtypes) & set(FLOATING)
    if floating:
        return max(floating | ({"float32"} if {"float16", "bfloat16"} <= floating else set()), key=FLOATING.index)
    signed = [dtype for dtype in dtypes if dtype in SIGNED]
    if "uint8" in dtypes:
        return max("int16", *signed, key=SIGNED.index) if signed else "uint8"
    return max(signed, key=SIGNED.index, default="bool")


def find_result_dtype(*operands: ProgramValue) -> str:
    """The dtype of an operation on tensors: one without axes counts only if its kind of number is a higher one."""
    wide = promote_dtypes(*(value.dtype for value in operands if value.rank))
    narrow = promote_dtypes(*(value.dtype for value in operands if not value.rank))
    return narrow if rank_category(narrow) > rank_category(wide) else wide


def rank_category(dtype: str) -> int:
    """Booleans come before integers, integers before floating-point numbers."""
    return 2 if dtype in FLOATING else int(dtype != "bool")


def promote_number(dtype: str, number: float) -> str:
    """The dtype of an operation on a tensor and a Python number; floats are float32 beside integers."""
    kind = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    if kind <= rank_category(dtype):
        return dtype
    return "float32" if kind == 2 else "int64"


# Not x, q, k, v and y, which are inputs, and not l, which reads as 1.
_FREE_NAMES = tuple(letter for letter in ascii_lowercase if letter not in "xyqkvnl")
# The most elements of a value in any call, and the longest statement: programs are made to be read.
_MOST, _LONGEST = 2**13, 90


class NothingFits(Exception):
    """A program has no value, or a value no axis, that a production asks for."""


@dataclass
class Scope:
    """The values that a program may use, the youngest last, and its statements so far.

    ``operators`` are the productions that wrote them. ``refusable`` says that an operand or parameter was drawn that
    eager mode may refuse; under ``backward`` no value that a gradient may need is overwritten. Where the program
    ``returns`` more than one value, ``returned`` names those that are returned as they are, whatever their form is.
    """

    pen: Pen
    values: list[ProgramValue]
    backward: bool = False
    alters_inputs: bool = True
    statements: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    refusable: bool = False
    returned: list[str] = field(default_factory=list)
    returns: bool = False
    _given: frozenset[str] = frozenset()
    _used: int = 0

    def __post_init__(self) -> None:
        self._given = frozenset(value.name for value in self.values)

    @property
    def device(self) -> str:
        """The argument of a factory function that names the device."""
        return f"device={self.values[0].name}.device"

    def some(self, holds: Callable[[ProgramValue], bool] = lambda value: True) -> ProgramValue | None:
        """A value for which this holds, if there is one: in half of the draws the youngest."""
        fitting = [value for value in reversed(self.values) if holds(value)]
        return None if not fitting else self.pen.one_of(fitting) if self.pen.chance(50) else fitting[0]

    def pick(self, holds: Callable[[ProgramValue], bool] = lambda value: True) -> ProgramValue:
        """As `some`; raises `NothingFits` where there is none."""
        if (value := self.some(holds)) is None:
            raise NothingFits
        return value

    def pick_floating(self, least_rank: int = 0) -> ProgramValue:
        """A floating value with that many axes at least; raises as `pick`."""
        return self.pick(lambda value: value.is_floating and value.rank >= least_rank)

    def pick_axis(self, value: ProgramValue, least: int = 1) -> int:
        """An axis of that size at least, in every call, counted from the end, the last first; raises as `pick`."""
        axes = [-at for at in range(1, value.rank + 1) if min(value.shape[-at]) >= least]
        if not axes:
            raise NothingFits
        return self.pen.one_of(axes)

    def pick_with_axis(
        self, holds: Callable[[ProgramValue], bool] = lambda value: True, least: int = 1
    ) -> tuple[ProgramValue, int]:
        """A value that has axes, and one of them; raises as `pick`."""
        value = self.pick(lambda value: value.rank > 0 and holds(value))
        return value, self.pick_axis(value, least)

    def writable(self, value: ProgramValue) -> bool:
        """Return whether a statement may write to the value's memory."""
        return not value.frozen and not self.backward and (self.alters_inputs or value.root not in self._given)

    def text(self, size: Dim) -> str:
        """A size as Python: a number, or read from a tensor that has it where calls differ."""
        if len(set(size)) == 1:
            return str(size[0])
        for value in self.values:
            if size in value.shape:
                return f"{value.name}.shape[{value.shape.index(size)}]"
        raise LookupError(f"no value has the size {size}")

    def sizes(self, shape: Sequence[Dim]) -> str:
        """A shape as a tuple in Python."""
        inner = ", ".join(self.text(size) for size in shape)
        return f"({inner},)" if len(shape) == 1 else f"({inner})"

    def fresh(self) -> str:
        """A name that is not in use."""
        number, at = divmod(self._used, len(_FREE_NAMES))
        self._used += 1
        return _FREE_NAMES[at] + (str(number) if number else "")

    def say(self, statement: str) -> bool:
        """Add a statement that makes no value; false if it is too long a line."""
        if len(statement) > _LONGEST:
            return False
        self.statements.append(statement)
        return True

    def keep(self, expression: str) -> bool:
        """Return the result of an expression, of any form; false if the program cannot, or it is too long a line."""
        if not self.returns or len(expression) > _LONGEST - 6:
            return False
        self.returned.append(self.name(expression))
        return True

    def name(self, expression: str) -> str:
        """Name an operand that no other statement uses."""
        name = self.fresh()
        self.statements.append(f"{name} = {expression}")
        return name

    def make(
        self, expression: str, shape: Shape, dtype: str, *operands: ProgramValue, smooth: bool = True
    ) -> ProgramValue | None:
        """Name the result of an expression in memory of its own, made of these operands.

        None if it has too many elements, or the statement too many letters.
        """
        name = self.fresh()
        gradient = smooth and dtype in FLOATING and any(operand.gradient for operand in operands)
        return self._keep(expression, ProgramValue(name, shape, dtype, name, gradient))

    def make_alike(
        self, form: str, of: ProgramValue, *operands: ProgramValue, smooth: bool = True, **holes: object
    ) -> ProgramValue | None:
        """As `make`, of the shape and dtype of ``of``, which the form calls ``{x}``."""
        return self.make(form.format(x=of.name, **holes), of.shape, of.dtype, of, *operands, smooth=smooth)

    def view(self, expression: str, shape: Shape, of: ProgramValue, *, frozen: bool = False) -> ProgramValue | None:
        """Name a view of a value, or what may be one."""
        name = self.fresh()
        return self._keep(expression, replace(of, name=name, shape=shape, frozen=of.frozen or frozen))

    def _keep(self, expression: str, value: ProgramValue) -> ProgramValue | None:
        if len(value.name) + len(expression) + 3 > _LONGEST or any(
            number > _MOST for number in count_elements(value.shape)
        ):
            return None
        self.statements.append(f"{value.name} = {expression}")
        self.values.append(value)
        return value


# Adds to the program; a false value or `NothingFits` if no value fits.
Produce = Callable[[Pen, Scope], object]


@dataclass(frozen=True)
class Production:
    """One way to go on with a program: its name, what it adds, and how often it is drawn among the others."""

    name: str
    summary: str
    weight: int
    produce: Produce


PRODUCTIONS: dict[str, Production] = {}


def production(weight: int) -> Callable[[Produce], Produce]:
    """Register the decorated function under its own name.

    Where no value of the program fits it returns a false value, or `Scope.pick` raises, and it has said nothing.
    """

    def decorate(produce: Produce) -> Produce:
        name = produce.__name__
        if name in PRODUCTIONS:
            raise ValueError(f"two productions are called {name}")
        PRODUCTIONS[name] = Production(name, (produce.__doc__ or "").strip(), weight, produce)
        return produce

    return decorate


# Draws operator programs and places them in a case.

# How many statements, fewer first.
_LENGTHS = ((1, 4), (2, 16), (3, 20), (4, 20), (5, 16), (6, 11), (7, 7), (8, 6))
# Percentage of programs drawn from so few productions, which then meet often (swarm testing, Groce et al. 2012).
_SWARMS, _SWARM = 60, 5
# Percentage of programs that call operators with any form of their arguments, how often, and how often in one place.
_CALLING, _CALLS, _CALLS_BETWEEN = 65, (3, 4, 5, 6, 8), 2
# A production may find no value that fits; so many are tried for each statement.
_TRIES = 3


def grow_program(
    pen: Pen,
    values: Sequence[ProgramValue],
    *,
    backward: bool,
    alters_inputs: bool,
    returns: bool = False,
    calls: int = 0,
) -> Scope:
    """The values and statements of a program over these inputs, which ``returns`` what it keeps.

    So many ``calls`` of any form are drawn among its statements.
    """
    scope = Scope(pen, list(values), backward, alters_inputs, returns=returns)
    choices = [(production, production.weight) for production in PRODUCTIONS.values()]
    weights = [(production, weight * pen.weights.get(production.name, 100)) for production, weight in choices]
    weights = weights if any(weight for _, weight in weights) else choices
    if pen.chance(_SWARMS):
        weights = [(pen.draw_weighted(weights), 1) for _ in range(_SWARM)]
    for _ in range(pen.draw_weighted(_LENGTHS)):
        for _ in range(_TRIES):
            drawn = pen.draw_weighted(weights)
            with suppress(NothingFits):
                if drawn.produce(pen, scope):
                    scope.operators.append(drawn.name)
                    break
        _add_calls(scope, min(calls, _CALLS_BETWEEN))
        calls -= _CALLS_BETWEEN
    _add_calls(scope, calls)
    return scope


def _add_calls(scope: Scope, count: int) -> None:
    """Add calls whose results are returned; one in eight draws random numbers."""
    for _ in range(count):
        drawn = PRODUCTIONS["called_random" if scope.pen.chance(12) else "called"]
        with suppress(NothingFits):
            if drawn.produce(scope.pen, scope):
                scope.operators.append(drawn.name)


_NAME_PATTERN = re.compile(r"\b[a-z]\w*")


def prune_statements(statements: Sequence[str], *results: str) -> tuple[str, ...]:
    """The statements without those that make values for nothing; those that write stay."""
    read, kept = set(results), list[str]()
    for statement in reversed(statements):
        made, equals, expression = statement.partition(" = ")
        targets = set(made.split(", ")) if equals and "[" not in made else set[str]()
        if targets and not targets & read:
            continue
        read |= set(_NAME_PATTERN.findall(expression if targets else statement))
        kept.append(statement)
    return tuple(reversed(kept))


def _find_last(scope: Scope) -> ProgramValue:
    """The youngest value; one with a gradient where gradients are asked for, if there is one beside the inputs."""
    return next(value for value in reversed(scope.values) if value.gradient or not scope.backward)


# Percentage of the cases with a body that have an operator program beside it.
_BESIDE = 35
# Shapes of a further input: they broadcast with the activation, or multiply it.
_SHAPES: tuple[tuple[str | int, ...], ...] = (
    ("B", "T", "C"), ("C",), ("T", 1), ("B", 1, "C"), (), ("C", "C"), ("C", 3), ("T", "C"),
)  # fmt: skip


def add_program(pen: Pen, spec: CaseSpec, *, refusable: bool = True) -> CaseSpec:
    """A fitted case of a program that is empty, with a program over its activation, further inputs and parameters.

    Without ``refusable`` the case stays as it is if eager mode may refuse what was drawn.
    """
    calls = pen.one_of(_CALLS) if pen.chance(_CALLING, "called") and spec.state is None and refusable else 0
    arguments, alters = _draw_arguments(pen, spec.dtype, of_any_form=bool(calls)), alters_inputs(spec)
    x = replace(_make_value(spec, ProgramArgument("x", ("B", "T", "C"), spec.dtype)), frozen=not alters)
    values = [x, *(_make_value(spec, argument) for argument in arguments)]
    scope = grow_program(pen, values, backward=spec.backward, alters_inputs=alters, returns=refusable, calls=calls)
    if scope.refusable and not refusable:
        return spec
    # It returns what no statement of it uses, and perhaps an inner value or an input too.
    uses = Counter(name for statement in scope.statements for name in set(_NAME_PATTERN.findall(statement)))
    unused = [value.name for value in reversed(scope.values[len(values) :]) if uses[value.name] == 1]
    outputs = [*scope.returned, *unused] or [_find_last(scope).name]
    if pen.chance(40):
        outputs.append(pen.one_of(list(reversed(scope.values))).name)
    if spec.backward and not any(value.gradient for value in scope.values if value.name in outputs):
        outputs.append(_find_last(scope).name)
    outputs = list(dict.fromkeys(outputs))
    program = OperatorProgram(
        prune_statements(scope.statements, *outputs), tuple(dict.fromkeys(scope.operators)), tuple(outputs), arguments
    )
    return replace(spec, program=program)


# Shapes of inputs of any form, and numbers at which operators change: of floating-point numbers and of integers.
_FORMS: tuple[tuple[int, ...], ...] = (
    (2, 3, 4), (4, 6), (40,), (1, 2, 5, 7), (2, 3, 6, 5), (), (1,), (5,), (1, 5), (3, 1, 2), (7, 7), (1, 3, 6, 6),
    (300,),
)  # fmt: skip
# Percentage of programs whose inputs have one shape: their loops become one kernel, which costs one compile.
_ALIKE = 60
_EDGES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.25,
    2.5,
    -7.0,
    88.5,
    -1e4,
    3e4,
    1e-5,
    1e-30,
    "3e25",
    -6e5,
    "torch.inf",
    "-torch.inf",
    "torch.nan",
)
_WHOLE_EDGES = (0, 1, 2, 3, 4, 7, 63, 64, 100, 127, -1, -2, -3, -100, -128)
_BYTES = (0, 1, 2, 4, 7, 64, 100, 127, 128, 200, 255)


def _draw_arguments(pen: Pen, dtype: str, *, of_any_form: bool) -> tuple[ProgramArgument, ...]:
    if of_any_form:
        drawn = [draw_argument(pen, name, dtype) for name in ("y", "q", "k", "v")[: 2 + pen.number(2)]]
        if pen.chance(_ALIKE):
            drawn = [replace(made, shape=drawn[0].shape, layout=drawn[0].layout) for made in drawn]
        return tuple(drawn)
    kinds = pen.draw_weighted([((), 45), (("y",), 25), (("weight",), 20), (("y", "weight"), 10)])
    arguments = []
    for name in kinds:
        parameter = name == "weight"
        shapes = [shape for shape in _SHAPES if "B" not in shape and "T" not in shape] if parameter else _SHAPES
        other = pen.one_of((dtype, "float32", "int64", "bool", "float64", "int32"))
        arguments.append(ProgramArgument(name, pen.one_of(shapes), dtype if parameter else other, parameter))
    return tuple(arguments)


def draw_argument(pen: Pen, name: str, dtype: str) -> ProgramArgument:
    """An input of any form: of random numbers or of those at which operators change, and lying in memory in any way."""
    dtype = pen.one_of((dtype, "float32", "int64", "uint8", "bool", "float64", "int32", "int8", "bfloat16", "float32"))
    shape = pen.one_of(_FORMS)
    layouts = [layout for layout, held in LAYOUTS.items() if len(shape) in held.ranks and layout != "outer_last"]
    layout = pen.one_of(layouts) if pen.chance(25) and layouts else "contiguous"
    edges: tuple[float | str, ...] = _EDGES if dtype in FLOATING else _WHOLE_EDGES
    edges = _BYTES if dtype == "uint8" else edges
    values = tuple(pen.one_of(edges) for _ in range(1 + pen.number(3))) if pen.chance(55) and dtype != "bool" else ()
    return ProgramArgument(name, shape, dtype, values=values, layout=layout)


def _make_value(spec: CaseSpec, argument: ProgramArgument) -> ProgramValue:
    sizes = tuple(zip(*(resolve_shape(argument.shape, dims) for dims in list_call_dims(spec)), strict=True))
    name = f"self.{argument.name}" if argument.parameter else argument.name
    gradient = spec.backward and (argument.parameter or name == "x")
    frozen = argument.parameter or argument.layout == "expanded"
    return ProgramValue(name, sizes, argument.dtype, name, gradient=gradient, frozen=frozen)


def add_programs_beside(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A fitted case with a program that makes its activation anew before or after its body, or without."""
    wanted, place = pen.chance(_BESIDE), pen.one_of(("before", "after"))
    if not wanted or any(0 in (dims.batch, dims.sequence) for dims in list_call_dims(spec)):
        return spec
    if place == "after" and not takes_x(spec):
        place = "before"
    name = list_activations(spec)[0]
    shapes = [find_input_shape(replace(spec, dims=dims), name) for dims in list_call_dims(spec)]
    entered = ProgramValue(name, tuple(zip(*shapes, strict=True)), spec.dtype, name, gradient=spec.backward)
    alters = alters_inputs(spec) and spec.embedding is None and not spec.aliased
    scope = grow_program(pen, [entered], backward=spec.backward, alters_inputs=alters)
    last, shape = _find_last(scope), entered.shape
    if (last.shape, last.dtype) == (shape, spec.dtype):
        scope.say(f"{name} = {last.name}")
    elif broadcast_shapes(last.shape, shape) == shape:
        scope.say(f"{name} = {name} + {last.name}{'' if last.dtype == spec.dtype else f'.to(torch.{spec.dtype})'}")
    else:
        scope.say(f"{name} = {name} + {last.name}.to(torch.{spec.dtype}).mean()")
    program = OperatorProgram(prune_statements(scope.statements, name), tuple(dict.fromkeys(scope.operators)))
    return fit_spec(replace(spec, programs=((place, program),)))
