"""The values and statements of a program while it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.values import FLOATING, Dim, Shape, Value

# Not x, q, k, v and y, which are inputs, and not l, which reads as 1.
_NAMES = tuple(letter for letter in ascii_lowercase if letter not in "xyqkvnl")
# The most elements of a value in any call, and the longest statement: programs are made to be read.
_MOST, _LONGEST = 2**13, 90


@dataclass
class Scope:
    """The values that a program may use, and its statements so far.

    Attributes:
        pen: draws the choices.
        values: the tensors by age, the youngest last.
        statements: lines of Python.
        operators: names of the productions that wrote them.
        refusable: an operand or parameter was drawn that eager mode may refuse.
        backward: gradients are asked for, so no value that one may need is overwritten.
        alters_inputs: the inputs may be written to.
    """

    pen: Pen
    values: list[Value]
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

    # -- operands ---------------------------------------------------------------------------------

    def some(self, holds: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value for which this holds: in half of the draws the youngest."""
        fitting = [value for value in reversed(self.values) if holds(value)]
        if not fitting:
            return None
        return fitting[0] if not self.pen.chance(50) else self.pen.one_of(fitting)

    def floating(self, least_rank: int = 0) -> Value | None:
        """A floating value with that many axes at least."""
        return self.some(lambda value: value.floating and value.rank >= least_rank)

    def writable(self, value: Value) -> bool:
        """Return whether a statement may write to the value's memory."""
        if value.frozen or self.backward:
            return False
        return self.alters_inputs or value.root not in self._given

    def axis(self, value: Value, least: int = 1) -> int | None:
        """An axis of that size at least, in every call, counted from the end: the last is the simplest."""
        axes = [-at for at in range(1, value.rank + 1) if min(value.shape[-at]) >= least]
        return self.pen.one_of(axes) if axes else None

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

    # -- statements -------------------------------------------------------------------------------

    def fresh(self) -> str:
        """A name that is not in use."""
        self._used += 1
        number, at = divmod(self._used - 1, len(_NAMES))
        return _NAMES[at] + (str(number) if number else "")

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

    def make(self, expression: str, shape: Shape, dtype: str, *operands: Value, smooth: bool = True) -> Value | None:
        """Name the result of an expression in memory of its own, made of these operands.

        None if it has too many elements, or the statement too many letters.
        """
        name = self.fresh()
        gradient = smooth and dtype in FLOATING and any(operand.gradient for operand in operands)
        return self._keep(expression, Value(name, shape, dtype, name, gradient))

    def view(self, expression: str, shape: Shape, of: Value, *, frozen: bool = False) -> Value | None:
        """Name a view of a value, or what may be one."""
        name = self.fresh()
        return self._keep(expression, replace(of, name=name, shape=shape, frozen=of.frozen or frozen))

    def _keep(self, expression: str, value: Value) -> Value | None:
        if len(value.name) + len(expression) + 3 > _LONGEST or any(number > _MOST for number in value.elements):
            return None
        self.statements.append(f"{value.name} = {expression}")
        self.values.append(value)
        return value

    def add(self, value: Value) -> None:
        """Take a value that a statement with several targets has made."""
        self.values.append(value)
