"""Checks of the interpreter, before a verdict rests on it: the results of small kernels against torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import triton.language as tl

from fuzzcompile.compiler.target import kernel_execution, kernel_operations
from fuzzcompile.compiler.target.kernel_execution import make_interpretable
from fuzzcompile.compiler.target.kernel_log import LaunchGrid, LaunchLimits, ProgramOrder
from fuzzcompile.compiler.target.target_patches import ReplacedAttribute, replace_attributes

# Small Triton kernels that :mod:`~fuzzcompile.compiler.target.interpreter_checks` runs.


def convert_kernel(x: Any, out: Any, n: Any) -> None:
    """Cast the elements to the dtype of ``out``."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def multiply_add_kernel(x: Any, y: Any, out: Any, n: Any) -> None:
    """Round ``x * y`` and add ``y``, in the dtype of the operands."""
    i = tl.arange(0, n)
    product = tl.load(x + i) * tl.load(y + i)
    tl.store(out + i, product + tl.load(y + i))


def divide_kernel(x: Any, y: Any, quotient: Any, remainder: Any, n: Any) -> None:
    """Integer division, which truncates."""
    i = tl.arange(0, n)
    tl.store(quotient + i, tl.load(x + i) // tl.load(y + i))
    tl.store(remainder + i, tl.load(x + i) % tl.load(y + i))


def shift_kernel(x: Any, out: Any, n: Any) -> None:
    """Shift right by one, which keeps the sign."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i) >> 1)


def mask_kernel(x: Any, out: Any, size: Any, n: Any) -> None:
    """Copy the first ``size`` elements; those behind them read as 7 and are not stored."""
    i = tl.arange(0, n)
    mask = i < size
    value = tl.load(x + i, mask=mask, other=7.0)
    tl.store(out + i, tl.cumsum(value, 0), mask=i < size + 1)


def product_kernel(a: Any, b: Any, out: Any, n: Any) -> None:
    """A matrix product, added in float32 (int32 for integers)."""
    i = tl.arange(0, n)[:, None]
    j = tl.arange(0, n)[None, :]
    tl.store(out + i * n + j, tl.dot(tl.load(a + i * n + j), tl.load(b + i * n + j)))


def fold_kernel(x: Any, total: Any, high: Any, low: Any, place: Any, rows: Any, n: Any) -> None:
    """Sum, maximum, minimum and place of the maximum of each row."""
    row = tl.arange(0, rows)
    value = tl.load(x + row[:, None] * n + tl.arange(0, n)[None, :])
    tl.store(total + row, tl.sum(value, 1))
    tl.store(high + row, tl.max(value, 1))
    tl.store(low + row, tl.min(value, 1))
    tl.store(place + row, tl.argmax(value, 1))


def moments_kernel(x: Any, mean: Any, square: Any, rows: Any, n: Any, combine: Any) -> None:
    """Mean and sum of squared deviations of each row, by a combine function of three values."""
    row = tl.arange(0, rows)
    value = tl.load(x + row[:, None] * n + tl.arange(0, n)[None, :])
    triple = tl.reduce((value, value * 0.0, value * 0.0 + 1.0), 1, combine)
    tl.store(mean + row, triple[0])
    tl.store(square + row, triple[1])


def combine_welford(mean_1: Any, square_1: Any, count_1: Any, mean_2: Any, square_2: Any, count_2: Any) -> Any:
    """Chan's update of mean and sum of squared deviations for two sets."""
    count = count_1 + count_2
    delta = mean_2 - mean_1
    mean = mean_1 + delta * count_2 / count
    return mean, square_1 + square_2 + delta * delta * count_1 * count_2 / count, count


def take_later(left: Any, right: Any) -> Any:
    """The second of two values: associative, and not commutative."""
    return right + left * 0.0


def scan_kernel(x: Any, forward: Any, backward: Any, last: Any, n: Any, combine: Any) -> None:
    """Running sums from both ends, and a scan whose combine function keeps the later value."""
    i = tl.arange(0, n)
    value = tl.load(x + i)
    tl.store(forward + i, tl.cumsum(value, 0))
    tl.store(backward + i, tl.cumsum(value, 0, reverse=True))
    tl.store(last + i, tl.associative_scan(value, 0, combine))


def sort_kernel(x: Any, out: Any, n: Any) -> None:
    """Sort each row."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.sort(tl.load(x + i)))


def collect_kernel(x: Any, total: Any, n: Any) -> None:
    """Add every element to one of four totals."""
    i = tl.arange(0, n)
    tl.atomic_add(total + i % 4, tl.load(x + i))


def philox_kernel(out: Any, n: Any) -> None:
    """The four words that Philox gives for key and counter zero."""
    i = tl.arange(0, n)
    first, second, third, fourth = tl.randint4x(0, i)
    tl.store(out + i, first)
    tl.store(out + n + i, second)
    tl.store(out + 2 * n + i, third)
    tl.store(out + 3 * n + i, fourth)


def program_kernel(out: Any, n: Any) -> None:
    """Add the number of each program to its element."""
    index = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out + index, tl.load(out + index) + index)


def apply_kernel(x: Any, out: Any, n: Any, function: Any) -> None:
    """A function of libdevice."""
    i = tl.arange(0, n)
    tl.store(out + i, function(tl.load(x + i)))


KernelCheck = Callable[[], bool]
_N = 64
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def _run_kernel(
    kernel: Callable[..., None], *values: object, grid: LaunchGrid = (1, 1, 1), **constants: object
) -> None:
    names = list(kernel.__annotations__)
    arguments = dict(zip(names, values, strict=False)) | constants
    signature = dict.fromkeys(constants, "constexpr")
    kernel_execution.run_kernel(
        kernel.__name__, kernel, arguments, signature, grid, ProgramOrder.FORWARD, LaunchLimits()
    )


def _make_values(dtype: torch.dtype = torch.float32, count: int = _N) -> torch.Tensor:
    """Numbers of both signs and many magnitudes, the same every time."""
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(count, generator=generator) * 4).to(dtype)


def _are_same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 0.0) -> bool:
    wide = left.double(), right.double()
    return torch.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True)


def _check_casts() -> bool:
    for narrow in _NARROW:
        source = torch.cat([_make_values(), torch.tensor([1.00390625, 1.01171875, 0.0, 1e-7])])
        source = torch.cat([source, source.new_zeros(_N - 4)])
        rounded, widened = torch.zeros_like(source, dtype=narrow), torch.zeros_like(source)
        _run_kernel(convert_kernel, source, rounded, n=len(source))
        _run_kernel(convert_kernel, rounded, widened, n=len(source))
        if not (_are_same(rounded, source.to(narrow)) and _are_same(widened, source.to(narrow).float())):
            return False
    return True


def _check_arithmetic() -> bool:
    for dtype in _FLOATS:
        x, y = _make_values(dtype), _make_values(dtype).flip(0)
        out = torch.zeros_like(x)
        _run_kernel(multiply_add_kernel, x, y, out, n=_N)
        if not _are_same(out, x * y + y):
            return False
    return True


def _check_integers() -> bool:
    x = torch.arange(-32, 32, dtype=torch.int32)
    y = torch.where(x % 2 == 0, 3, -5).to(torch.int32)
    quotient, remainder, shifted = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    _run_kernel(divide_kernel, x, y, quotient, remainder, n=_N)
    _run_kernel(shift_kernel, x, shifted, n=_N)
    truncated = torch.div(x, y, rounding_mode="trunc")
    return _are_same(quotient, truncated) and _are_same(remainder, x - truncated * y) and _are_same(shifted, x >> 1)


def _check_masks() -> bool:
    x, out = torch.ones(_N), torch.full((_N,), -1.0)
    _run_kernel(mask_kernel, x, out, 10, n=_N)
    expected = torch.full((_N,), -1.0)
    expected[:11] = torch.tensor([*range(1, 11), 17.0])
    return _are_same(out, expected)


def _check_products() -> bool:
    for dtype in (*_FLOATS, torch.int8):
        a, b = _make_values(dtype, 256).reshape(16, 16), _make_values(dtype, 256).flip(0).reshape(16, 16)
        out = torch.zeros(16, 16, dtype=torch.float32 if dtype.is_floating_point else torch.int32)
        _run_kernel(product_kernel, a, b, out, n=16)
        if not _are_same(out, a.double() @ b.double(), 1e-4):
            return False
    return True


def _check_reductions() -> bool:
    for dtype in (*_FLOATS, torch.int32):
        x = _make_values(dtype, 4 * _N).reshape(4, _N)
        x[1, 5] = x[1, 9] = 100
        total, high, low = (torch.zeros(4, dtype=dtype) for _ in range(3))
        place = torch.zeros(4, dtype=torch.int32)
        _run_kernel(fold_kernel, x, total, high, low, place, rows=4, n=_N)
        tolerance = 0.5 if dtype in _FLOATS[1:] else 1e-4
        extremes = _are_same(high, x.amax(1)) and _are_same(low, x.amin(1)) and _are_same(place, x.argmax(1))
        if not (extremes and _are_same(total, x.double().sum(1), tolerance)):
            return False
    return True


def _check_combined() -> bool:
    x = _make_values(count=4 * _N).reshape(4, _N)
    mean, square = torch.zeros(4), torch.zeros(4)
    _run_kernel(moments_kernel, x, mean, square, rows=4, n=_N, combine=make_interpretable(combine_welford))
    return _are_same(mean, x.double().mean(1), 1e-5) and _are_same(square, x.double().var(1, correction=0) * _N, 1e-2)


def _check_scans() -> bool:
    x = _make_values()
    forward, backward, last = (torch.zeros_like(x) for _ in range(3))
    _run_kernel(scan_kernel, x, forward, backward, last, n=_N, combine=make_interpretable(take_later))
    wide = x.double()
    reverse = wide.flip(0).cumsum(0).flip(0)
    return _are_same(forward, wide.cumsum(0), 1e-4) and _are_same(backward, reverse, 1e-4) and _are_same(last, x)


def _check_sorts() -> bool:
    x = _make_values()
    out = torch.zeros_like(x)
    _run_kernel(sort_kernel, x, out, n=_N)
    return _are_same(out, x.sort().values)


def _check_atomics() -> bool:
    for dtype in (*_FLOATS, torch.int32):
        x, total = torch.arange(_N).remainder(3).to(dtype), torch.zeros(4, dtype=dtype)
        _run_kernel(collect_kernel, x, total, n=_N)
        if not _are_same(total, x.reshape(-1, 4).sum(0)):
            return False
    return True


def _check_random() -> bool:
    """The known answer of philox4x32-10 for key and counter zero, from the Random123 distribution."""
    out = torch.zeros(4, dtype=torch.int32)
    _run_kernel(philox_kernel, out, n=1)
    return [word % 2**32 for word in out.tolist()] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def _check_programs() -> bool:
    out = torch.zeros(12, dtype=torch.int32)
    _run_kernel(program_kernel, out, n=1, grid=(3, 4, 1))
    return out.tolist() == list(range(12))


# Functions of libdevice that Python's math module has too.
_MATH: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {name: getattr(math, name) for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "erf", "erfc",
     "tanh", "sinh", "cosh", "sin", "cos", "tan", "atan", "asinh", "lgamma", "floor", "ceil", "trunc")}
)  # fmt: skip


def _check_library() -> bool:
    x, replacements = _make_values().abs() + 0.25, kernel_operations.make_libdevice_functions()
    for name, function in _MATH.items():
        out = torch.zeros_like(x)
        _run_kernel(apply_kernel, x, out, n=_N, function=replacements[name])
        if not _are_same(out, torch.tensor([function(value) for value in x.tolist()]), 1e-5):
            return False
    return True


CHECKS: Mapping[str, KernelCheck] = MappingProxyType(
    {
        "casts": _check_casts,
        "arithmetic": _check_arithmetic,
        "integer division": _check_integers,
        "masks": _check_masks,
        "matrix products": _check_products,
        "reductions": _check_reductions,
        "reductions by a combine function": _check_combined,
        "scans": _check_scans,
        "sorts": _check_sorts,
        "atomics": _check_atomics,
        "random numbers": _check_random,
        "grids": _check_programs,
        "libdevice": _check_library,
    }
)


@functools.cache
def find_failed_check(places: tuple[ReplacedAttribute, ...]) -> str | None:
    """Return the first check that fails with ``places`` replaced, and how; None if all pass. Run once in a process."""
    with replace_attributes(None, places):
        for name, check in CHECKS.items():
            try:
                if not check():
                    return f"{name}: wrong values"
            except Exception as error:  # whatever a broken interpreter raises
                return f"{name}: {type(error).__name__}: {error}"
    return None


def run_check(name: str, places: tuple[ReplacedAttribute, ...]) -> bool:
    """Return whether one check passes with ``places`` replaced, run anew."""
    with replace_attributes(None, places):
        return CHECKS[name]()
