"""Where the elements of a tensor lie in the memory that it shares, and the views of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

WIDTHS = {"int64": 8, "int32": 4, "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""The bytes of an element."""


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of a tensor, in elements, and its offset in the memory ``root``, in elements too.

    ``memory`` is the size of that memory in bytes.
    """

    root: str
    memory: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of_new(cls, root: str, dtype: str, shape: tuple[int, ...]) -> Layout:
        """That of a new tensor, whose elements lie one after another."""
        strides = tuple(prod(shape[at + 1 :]) for at in range(len(shape)))
        return cls(root, prod(shape) * WIDTHS[dtype], dtype, shape, strides)

    @property
    def is_floating(self) -> bool:
        """True if it holds floating-point numbers."""
        return "float" in self.dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements lie one after another."""
        return self.strides == Layout.of_new("", self.dtype, self.shape).strides

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first byte of each element."""
        steps = [range(0, size * stride, stride) if stride else (0,) * size for size, stride in self._axes]
        return tuple((self.offset + sum(at)) * WIDTHS[self.dtype] for at in itertools.product(*steps))

    @property
    def _axes(self) -> Iterator[tuple[int, int]]:
        return zip(self.shape, self.strides, strict=True)

    @cached_property
    def bytes(self) -> frozenset[int]:
        """All bytes of the elements."""
        return frozenset(start + at for start in self.starts for at in range(WIDTHS[self.dtype]))

    @property
    def is_writable(self) -> bool:
        """Return whether no two elements are one."""
        return len(set(self.starts)) == len(self.starts)

    @property
    def is_inside(self) -> bool:
        """Return whether all elements lie in the memory."""
        return bool(self.starts) and max(self.starts) + WIDTHS[self.dtype] <= self.memory

    def is_apart(self, other: Layout) -> bool:
        """Return whether the two share no byte."""
        return self.root != other.root or self.bytes.isdisjoint(other.bytes)

    def is_same(self, other: Layout) -> bool:
        """Return whether both have the same elements in the same places."""
        return (self.root, self.dtype, self.shape, self.starts) == (other.root, other.dtype, other.shape, other.starts)


@dataclass(frozen=True)
class View:
    """One way to view a tensor: its expression, and where the view's elements lie; None where there is no such view.

    Not ``differentiable``: autograd has no derivative of it, or refuses a write to it.
    """

    name: str
    form: str
    weight: int
    place: Callable[[Layout], Layout | None]
    differentiable: bool = True


def _cut(of: Layout, start: int, step: int = 1, stop: int | None = None) -> Layout | None:
    if not of.rank or of.shape[0] < 2:
        return None
    taken = range(of.shape[0])[start:stop:step]
    shape, strides = (len(taken), *of.shape[1:]), (of.strides[0] * step, *of.strides[1:])
    return replace(of, shape=shape, strides=strides, offset=of.offset + taken.start * of.strides[0]) if taken else None


def _select(of: Layout, at: int) -> Layout | None:
    if of.rank < 2:
        return None
    return replace(of, shape=of.shape[1:], strides=of.strides[1:], offset=of.offset + at % of.shape[0] * of.strides[0])


def _swap(of: Layout) -> Layout | None:
    return replace(of, shape=of.shape[::-1], strides=of.strides[::-1]) if of.rank == 2 else None


def _flatten(of: Layout) -> Layout | None:
    fits = of.rank > 1 and of.is_contiguous
    return replace(of, shape=(prod(of.shape),), strides=(1,)) if fits else None


def _fold(of: Layout) -> Layout | None:
    fits = of.rank == 1 and of.strides == (1,) and of.shape[0] % 2 == 0
    return replace(of, shape=(2, of.shape[0] // 2), strides=(of.shape[0] // 2, 1)) if fits else None


def _diagonal(of: Layout) -> Layout | None:
    return replace(of, shape=(min(of.shape),), strides=(sum(of.strides),)) if of.rank == 2 else None


def _window(of: Layout, size: int, step: int) -> Layout | None:
    if of.rank != 1 or of.shape[0] < size + step:
        return None
    return replace(of, shape=((of.shape[0] - size) // step + 1, size), strides=(of.strides[0] * step, of.strides[0]))


def _stride(of: Layout) -> Layout | None:
    made = replace(of, shape=(2, 3), strides=(1, 2)) if of.rank == 1 else None
    return made if made is not None and made.is_inside else None


def _view_as_int32(of: Layout, source: str) -> Layout | None:
    if of.dtype != source or not of.rank or of.strides[-1] != 1:
        return None
    ratio = WIDTHS[source] // WIDTHS["int32"]
    strides = (*(stride * ratio for stride in of.strides[:-1]), 1)
    return replace(
        of, dtype="int32", shape=(*of.shape[:-1], of.shape[-1] * ratio), strides=strides, offset=of.offset * ratio
    )


def _expand(of: Layout) -> Layout | None:
    return replace(of, shape=(2, *of.shape), strides=(0, *of.strides)) if of.rank == 1 else None


VIEWS = (
    View("view_rest", "$a[1:]", 10, lambda of: _cut(of, 1)),
    View("view_start", "$a[:-1]", 8, lambda of: _cut(of, 0, 1, -1)),
    View("view_even", "$a[::2]", 8, lambda of: _cut(of, 0, 2)),
    View("view_odd", "$a[1::2]", 6, lambda of: _cut(of, 1, 2)),
    View("view_half", "$a.chunk(2)[1]", 6, lambda of: _cut(of, (of.shape[0] + 1) // 2) if of.rank else None, False),
    View("view_narrow", "$a.narrow(0, 1, 2)", 4, lambda of: _cut(of, 1, 1, 3) if of.rank and of.shape[0] > 2 else None),
    View("view_first", "$a[0]", 8, lambda of: _select(of, 0)),
    View("view_last", "$a[-1]", 5, lambda of: _select(of, -1)),
    View("view_transposed", "$a.t()", 8, _swap),
    View("view_flat", "$a.view(-1)", 8, _flatten),
    View("view_folded", "$a.view(2, -1)", 8, _fold),
    View("view_diagonal", "$a.diagonal()", 5, _diagonal),
    View("view_windows", "$a.unfold(0, 3, 1)", 4, lambda of: _window(of, 3, 1)),
    View("view_gaps", "$a.unfold(0, 2, 3)", 5, lambda of: _window(of, 2, 3)),
    View("view_strided", "$a.as_strided((2, 3), (1, 2))", 4, _stride),
    View("view_expanded", "$a.expand(2, -1)", 4, _expand),
    View("view_int32", "$a.view(torch.int32)", 4, lambda of: _view_as_int32(of, "int64")),
    View("view_bits", "$a.view(torch.int32)", 4, lambda of: _view_as_int32(of, "float32")),
    View("view_detached", "$a.detach()", 5, lambda of: of),
    View("view_alike", "$a.view_as($a)", 5, lambda of: of),
    View("view_set", "torch.empty(0, dtype=$a.dtype).set_($a)", 2, lambda of: of, False),
    View("view_contiguous", "$a.contiguous()", 4, lambda of: of if of.is_contiguous else None),
    View("view_reshaped", "$a.reshape(-1)", 5, _flatten),
)
