"""Small Triton kernels that :mod:`~fuzzcompile.compiler.target.interpreted.checks` runs.

They are bodies of kernels without ``triton.jit``, which the interpreter does not need. Pointers, sizes and block sizes
are Triton values, and results are written to ``out``.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl


def convert(x: Any, out: Any, n: Any) -> None:
    """Cast the elements to the dtype of ``out``."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def multiply_add(x: Any, y: Any, out: Any, n: Any) -> None:
    """Round ``x * y`` and add ``y``, in the dtype of the operands."""
    i = tl.arange(0, n)
    product = tl.load(x + i) * tl.load(y + i)
    tl.store(out + i, product + tl.load(y + i))


def divide(x: Any, y: Any, quotient: Any, remainder: Any, n: Any) -> None:
    """Integer division, which truncates."""
    i = tl.arange(0, n)
    tl.store(quotient + i, tl.load(x + i) // tl.load(y + i))
    tl.store(remainder + i, tl.load(x + i) % tl.load(y + i))


def shift(x: Any, out: Any, n: Any) -> None:
    """Shift right by one, which keeps the sign."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i) >> 1)


def masked(x: Any, out: Any, size: Any, n: Any) -> None:
    """Copy the first ``size`` elements; those behind them read as 7 and are not stored."""
    i = tl.arange(0, n)
    mask = i < size
    value = tl.load(x + i, mask=mask, other=7.0)
    tl.store(out + i, tl.cumsum(value, 0), mask=i < size + 1)


def product(a: Any, b: Any, out: Any, n: Any) -> None:
    """A matrix product, added in float32 (int32 for integers)."""
    i = tl.arange(0, n)[:, None]
    j = tl.arange(0, n)[None, :]
    tl.store(out + i * n + j, tl.dot(tl.load(a + i * n + j), tl.load(b + i * n + j)))


def fold(x: Any, total: Any, high: Any, low: Any, place: Any, rows: Any, n: Any) -> None:
    """Sum, maximum, minimum and place of the maximum of each row."""
    row = tl.arange(0, rows)
    value = tl.load(x + row[:, None] * n + tl.arange(0, n)[None, :])
    tl.store(total + row, tl.sum(value, 1))
    tl.store(high + row, tl.max(value, 1))
    tl.store(low + row, tl.min(value, 1))
    tl.store(place + row, tl.argmax(value, 1))


def moments(x: Any, mean: Any, square: Any, rows: Any, n: Any, combine: Any) -> None:
    """Mean and sum of squared deviations of each row, by a combine function of three values."""
    row = tl.arange(0, rows)
    value = tl.load(x + row[:, None] * n + tl.arange(0, n)[None, :])
    triple = tl.reduce((value, value * 0.0, value * 0.0 + 1.0), 1, combine)
    tl.store(mean + row, triple[0])
    tl.store(square + row, triple[1])


def welford(mean_1: Any, square_1: Any, count_1: Any, mean_2: Any, square_2: Any, count_2: Any) -> Any:
    """Chan's update of mean and sum of squared deviations for two sets."""
    count = count_1 + count_2
    delta = mean_2 - mean_1
    mean = mean_1 + delta * count_2 / count
    return mean, square_1 + square_2 + delta * delta * count_1 * count_2 / count, count


def later(left: Any, right: Any) -> Any:
    """The second of two values: associative, and not commutative."""
    return right + left * 0.0


def scan(x: Any, forward: Any, backward: Any, last: Any, n: Any, combine: Any) -> None:
    """Running sums from both ends, and a scan whose combine function keeps the later value."""
    i = tl.arange(0, n)
    value = tl.load(x + i)
    tl.store(forward + i, tl.cumsum(value, 0))
    tl.store(backward + i, tl.cumsum(value, 0, reverse=True))
    tl.store(last + i, tl.associative_scan(value, 0, combine))


def arrange(x: Any, out: Any, n: Any) -> None:
    """Sort each row."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.sort(tl.load(x + i)))


def collect(x: Any, total: Any, n: Any) -> None:
    """Add every element to one of four totals."""
    i = tl.arange(0, n)
    tl.atomic_add(total + i % 4, tl.load(x + i))


def draw(out: Any, n: Any) -> None:
    """The four words that Philox gives for key and counter zero."""
    i = tl.arange(0, n)
    first, second, third, fourth = tl.randint4x(0, i)
    tl.store(out + i, first)
    tl.store(out + n + i, second)
    tl.store(out + 2 * n + i, third)
    tl.store(out + 3 * n + i, fourth)


def each_program(out: Any, n: Any) -> None:
    """Add the number of each program to its element."""
    index = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out + index, tl.load(out + index) + index)


def apply(x: Any, out: Any, n: Any, function: Any) -> None:
    """A function of libdevice."""
    i = tl.arange(0, n)
    tl.store(out + i, function(tl.load(x + i)))
