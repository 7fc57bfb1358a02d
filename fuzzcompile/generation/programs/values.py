"""Types of the values in a program: symbolic shape, dtype, memory, and whether a gradient flows. Imports no torch.

A size is known for every call of a case, not for one: two sizes are the same if they agree in all calls. A statement
that fits the types therefore runs at every call, and a coincidence of sizes is as good as an equality by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

# A size in each call of the case.
Dim = tuple[int, ...]
Shape = tuple[Dim, ...]

FLOATING = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8")
DTYPES = (*FLOATING, *INTEGERS, "bool")
_BYTES = {
    1: ("bool", "int8", "uint8"),
    2: ("int16", "float16", "bfloat16"),
    4: ("int32", "float32"),
    8: ("int64", "float64"),
}
# The bytes of an element.
WIDTHS = {dtype: width for width, dtypes in _BYTES.items() for dtype in dtypes}


@dataclass(frozen=True)
class Value:
    """A tensor that a program has made or was given.

    Attributes:
        name: the expression that reads it.
        shape: its sizes.
        dtype: torch's name of it.
        root: the value whose memory it may share; its own name if it has memory of its own.
        gradient: whether it depends on an input's gradient.
        frozen: writing to it is refused or undefined: elements overlap, it is a parameter, or one of several views.
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
    def floating(self) -> bool:
        """True if it holds floating-point numbers."""
        return self.dtype in FLOATING

    @property
    def integral(self) -> bool:
        """True if it holds integers, not booleans."""
        return self.dtype in INTEGERS

    @property
    def elements(self) -> Dim:
        """The number of elements in each call."""
        return elements(self.shape)


def elements(shape: Shape) -> Dim:
    """Count the elements of a tensor of that shape in each call; () for a shape without axes, which has one."""
    return tuple(prod(sizes) for sizes in zip(*shape, strict=True))


def broadcast(first: Shape, second: Shape) -> Shape | None:
    """The shape that two shapes broadcast to, or None."""
    if len(first) < len(second):
        first, second = second, first
    joined = list(first)
    for at in range(1, len(second) + 1):
        size = _joined(first[-at], second[-at])
        if size is None:
            return None
        joined[-at] = size
    return tuple(joined)


def _joined(first: Dim, second: Dim) -> Dim | None:
    """The size that two sizes broadcast to."""
    if first == second or ones(second):
        return first
    return second if ones(first) else None


def ones(size: Dim) -> bool:
    """Return whether a size is 1 in every call."""
    return all(number == 1 for number in size)


def least(size: Dim) -> int:
    """The smallest that a size ever is."""
    return min(size, default=1)


def promoted(first: str, second: str) -> str:
    """The dtype of an operation on two tensors that both have axes (torch's promotion lattice)."""
    if first == second or second == "bool":
        return first
    if first == "bool":
        return second
    if first in FLOATING or second in FLOATING:
        return _floating(first, second)
    if "uint8" in (first, second):
        signed = first if second == "uint8" else second
        return "int16" if signed == "int8" else signed
    return max(first, second, key=SIGNED.index)


def _floating(first: str, second: str) -> str:
    if second not in FLOATING:
        return first
    if first not in FLOATING:
        return second
    return "float32" if {first, second} == {"float16", "bfloat16"} else max(first, second, key=FLOATING.index)


def result_dtype(*operands: Value) -> str:
    """The dtype of an operation on tensors: one without axes counts only if its kind of number is a higher one."""
    with_axes = [value.dtype for value in operands if value.rank]
    without = [value.dtype for value in operands if not value.rank]
    if not with_axes or not without:
        return _all_promoted(with_axes or without)
    wide, narrow = _all_promoted(with_axes), _all_promoted(without)
    return narrow if category(narrow) > category(wide) else wide


def _all_promoted(dtypes: list[str]) -> str:
    dtype = dtypes[0]
    for following in dtypes[1:]:
        dtype = promoted(dtype, following)
    return dtype


def category(dtype: str) -> int:
    """Booleans come before integers, integers before floating-point numbers."""
    return 2 if dtype in FLOATING else int(dtype != "bool")


def with_number(dtype: str, number: float) -> str:
    """The dtype of an operation on a tensor and a Python number; floats are float32 beside integers."""
    kind = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    if kind <= category(dtype):
        return dtype
    return "float32" if kind == 2 else "int64"
