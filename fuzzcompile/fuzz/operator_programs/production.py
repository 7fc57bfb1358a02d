"""Productions by name, and the typed values and scope that they write statements with. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from string import ascii_lowercase

from fuzzcompile.fuzz.generation.spec import Pen

# Types of the values in a program: symbolic shape, dtype, memory, and whether a gradient flows. Imports no torch.

# A size in each call of the case.
Dim = tuple[int, ...]
Shape = tuple[Dim, ...]

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8")
DTYPES = (*FLOATING, *INTEGERS, "bool")
WIDTHS = dict(zip(DTYPES, (2, 2, 4, 8, 1, 2, 4, 8, 1, 1), strict=True))
"""The bytes of an element."""


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

    @property
    def elements(self) -> Dim:
        """The number of elements in each call."""
        return count_elements(self.shape)


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
        if first[-at] != second[-at] and not is_one(second[-at]):
            if not is_one(first[-at]):
                return None
            joined[-at] = second[-at]
    return tuple(joined)


def is_one(size: Dim) -> bool:
    """Return whether a size is 1 in every call."""
    return all(number == 1 for number in size)


def find_least(size: Dim) -> int:
    """The smallest that a size ever is."""
    return min(size, default=1)


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


# The values and statements of a program while it is drawn.

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
    eager mode may refuse; under ``backward`` no value that a gradient may need is overwritten.
    """

    pen: Pen
    values: list[ProgramValue]
    backward: bool = False
    alters_inputs: bool = True
    statements: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    refusable: bool = False
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
        if len(value.name) + len(expression) + 3 > _LONGEST or any(number > _MOST for number in value.elements):
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
        register_production(Production(produce.__name__, (produce.__doc__ or "").strip(), weight, produce))
        return produce

    return decorate


def register_production(added: Production) -> None:
    """Make a production known.

    Raises:
        ValueError: a production of that name is registered.
    """
    if added.name in PRODUCTIONS:
        raise ValueError(f"two productions are called {added.name}")
    PRODUCTIONS[added.name] = added
