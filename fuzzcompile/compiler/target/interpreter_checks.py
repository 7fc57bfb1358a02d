"""Checks of the interpreter, before a verdict rests on it: the results of small kernels against torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import triton.language as tl

from fuzzcompile.compiler.target import kernel_execution, kernel_operations
from fuzzcompile.compiler.target.kernel_execution import make_interpretable
from fuzzcompile.compiler.target.kernel_log import LaunchGrid, ProgramOrder
from fuzzcompile.model.errors import describe_error
from fuzzcompile.run.torch_attributes import ReplacedAttribute, replace_attributes

# Small Triton kernels; those that are given a ``function`` apply it to what they loaded.


def convert_kernel(x: Any, out: Any, n: Any) -> None:
    """Cast the elements to the dtype of ``out``."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def _apply_kernel(x: Any, y: Any, out: Any, n: Any, function: Any) -> None:
    i = tl.arange(0, n)
    tl.store(out + i, function(tl.load(x + i), tl.load(y + i)))


def _reduce_kernel(x: Any, out: Any, rows: Any, n: Any, function: Any) -> None:
    row = tl.arange(0, rows)
    tl.store(out + row, function(tl.load(x + row[:, None] * n + tl.arange(0, n)[None, :]), 1))


def _mask_kernel(x: Any, out: Any, size: Any, n: Any) -> None:
    i = tl.arange(0, n)
    mask = i < size
    value = tl.load(x + i, mask=mask, other=7.0)
    tl.store(out + i, tl.cumsum(value, 0), mask=i < size + 1)


def _product_kernel(a: Any, b: Any, out: Any, n: Any) -> None:
    i = tl.arange(0, n)[:, None]
    j = tl.arange(0, n)[None, :]
    tl.store(out + i * n + j, tl.dot(tl.load(a + i * n + j), tl.load(b + i * n + j)))


def _collect_kernel(x: Any, total: Any, n: Any) -> None:
    i = tl.arange(0, n)
    tl.atomic_add(total + i % 4, tl.load(x + i))


def _philox_kernel(out: Any, n: Any) -> None:
    i = tl.arange(0, n)
    words = tl.randint4x(0, i)
    tl.store(out + i, words[0])
    tl.store(out + n + i, words[1])
    tl.store(out + 2 * n + i, words[2])
    tl.store(out + 3 * n + i, words[3])


def _program_kernel(out: Any, n: Any) -> None:
    index = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(out + index, tl.load(out + index) + index)


def _combine_welford(mean_1: Any, square_1: Any, count_1: Any, mean_2: Any, square_2: Any, count_2: Any) -> Any:
    """Chan's update of mean and sum of squared deviations for two sets."""
    count = count_1 + count_2
    delta = mean_2 - mean_1
    mean = mean_1 + delta * count_2 / count
    return mean, square_1 + square_2 + delta * delta * count_1 * count_2 / count, count


def _take_later(left: Any, right: Any) -> Any:
    """Associative, and not commutative."""
    return right + left * 0.0


Compared = tuple[torch.Tensor, torch.Tensor, float]
"""The result of a kernel, what torch computes in its place, and how far they may differ."""
_N = 64
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def _run_kernel(
    kernel: Callable[..., None], *values: object, grid: LaunchGrid = (1, 1, 1), **constants: object
) -> None:
    arguments = dict(zip(kernel.__annotations__, values, strict=False)) | constants
    signature = dict.fromkeys(constants, "constexpr")
    kernel_execution.run_kernel(kernel.__name__, kernel, arguments, signature, grid, ProgramOrder.FORWARD)


def _compare(
    kernel: Callable[..., None],
    *inputs: torch.Tensor,
    wanted: torch.Tensor,
    within: float = 0.0,
    grid: LaunchGrid = (1, 1, 1),
    **constants: object,
) -> Compared:
    output = torch.zeros_like(wanted)
    _run_kernel(kernel, *inputs, output, grid=grid, **constants)
    return output, wanted, within


def _apply(function: Any, x: torch.Tensor, y: torch.Tensor, wanted: torch.Tensor, within: float = 0.0) -> Compared:
    return _compare(_apply_kernel, x, y, wanted=wanted, within=within, n=_N, function=function)


def _reduce(function: Any, x: torch.Tensor, wanted: torch.Tensor, within: float = 0.0) -> Compared:
    return _compare(_reduce_kernel, x, wanted=wanted, within=within, rows=4, n=_N, function=function)


def _make_values(dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    """Numbers of both signs and many magnitudes, the same every time."""
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(shape or (_N,), generator=generator) * 4).to(dtype)


def _check_casts() -> Iterator[Compared]:
    for narrow in _NARROW:
        source = torch.zeros(2 * _N)
        source[:_N], source[_N : _N + 4] = _make_values(), torch.tensor([1.00390625, 1.01171875, 0.0, 1e-7])
        rounded = source.to(narrow)
        yield _compare(convert_kernel, source, wanted=rounded, n=len(source))
        yield _compare(convert_kernel, rounded, wanted=rounded.float(), n=len(source))


def _check_arithmetic() -> Iterator[Compared]:
    for dtype in _FLOATS:
        x, y = _make_values(dtype), _make_values(dtype).flip(0)
        yield _apply(lambda a, b: a * b + b, x, y, x * y + y)


def _check_integers() -> Iterator[Compared]:
    x = torch.arange(-32, 32, dtype=torch.int32)
    y = torch.where(x % 2 == 0, 3, -5).to(torch.int32)
    quotient = torch.div(x, y, rounding_mode="trunc")
    yield _apply(lambda a, b: a // b, x, y, quotient)
    yield _apply(lambda a, b: a % b, x, y, x - quotient * y)
    yield _apply(lambda a, b: a >> 1, x, y, x >> 1)


def _check_masks() -> Iterator[Compared]:
    x, out = torch.ones(_N), torch.full((_N,), -1.0)
    _run_kernel(_mask_kernel, x, out, 10, n=_N)
    yield out, torch.tensor([*range(1, 11), 17.0] + [-1.0] * (_N - 11)), 0


def _check_products() -> Iterator[Compared]:
    for dtype in (*_FLOATS, torch.int8):
        a = _make_values(dtype, 16, 16)
        b, wide = a.flip(0, 1), torch.float32 if dtype.is_floating_point else torch.int32
        yield _compare(_product_kernel, a, b, wanted=(a.double() @ b.double()).to(wide), within=1e-4, n=16)


def _check_reductions() -> Iterator[Compared]:
    for dtype in (*_FLOATS, torch.int32):
        x = _make_values(dtype, 4, _N)
        x[1, 5] = x[1, 9] = 100
        yield _reduce(tl.sum, x, x.double().sum(1).to(dtype), 0.5 if dtype in _FLOATS[1:] else 1e-4)
        for function, wanted in ((tl.max, x.amax(1)), (tl.min, x.amin(1)), (tl.argmax, x.argmax(1).int())):
            yield _reduce(function, x, wanted)


def _check_combined() -> Iterator[Compared]:
    x, combine = _make_values(torch.float32, 4, _N), make_interpretable(_combine_welford)

    def fold(value: Any, axis: int) -> Any:
        return tl.reduce((value, value * 0.0, value * 0.0 + 1.0), axis, combine)

    yield _reduce(lambda value, axis: fold(value, axis)[0], x, x.double().mean(1).float(), 1e-5)
    square = (x.double().var(1, correction=0) * _N).float()
    yield _reduce(lambda value, axis: fold(value, axis)[1], x, square, 1e-2)


def _check_scans() -> Iterator[Compared]:
    x, combine = _make_values(), make_interpretable(_take_later)
    total = x.double().cumsum(0).float(), x.double().flip(0).cumsum(0).flip(0).float()
    yield _apply(lambda value, _: tl.cumsum(value, 0), x, x, total[0], 1e-4)
    yield _apply(lambda value, _: tl.cumsum(value, 0, reverse=True), x, x, total[1], 1e-4)
    yield _apply(lambda value, _: tl.associative_scan(value, 0, combine), x, x, x)


def _check_sorts() -> Iterator[Compared]:
    x = _make_values()
    yield _apply(lambda value, _: tl.sort(value), x, x, x.sort().values)


def _check_atomics() -> Iterator[Compared]:
    for dtype in (*_FLOATS, torch.int32):
        x = torch.arange(_N).remainder(3).to(dtype)
        yield _compare(_collect_kernel, x, wanted=x.reshape(-1, 4).sum(0).to(dtype), n=_N)


def _check_random() -> Iterator[Compared]:
    """The known answer of philox4x32-10 for key and counter zero, from the Random123 distribution."""
    out = torch.zeros(4, dtype=torch.int32)
    _run_kernel(_philox_kernel, out, n=1)
    yield out.long() % 2**32, torch.tensor([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]), 0


def _check_programs() -> Iterator[Compared]:
    yield _compare(_program_kernel, wanted=torch.arange(12, dtype=torch.int32), n=1, grid=(3, 4, 1))


def _check_library() -> Iterator[Compared]:
    """Functions of libdevice that Python's math module has too."""
    x, replacements = _make_values().abs() + 0.25, kernel_operations.make_libdevice_functions()
    named = "exp expm1 log log1p log2 log10 sqrt erf erfc tanh sinh cosh sin cos tan atan asinh lgamma floor ceil trunc"
    for name in named.split():
        wanted = torch.tensor([getattr(math, name)(value) for value in x.tolist()])
        yield _apply(lambda value, _, name=name: replacements[name](value), x, x, wanted, 1e-5)


_CHECKS: Mapping[str, Callable[[], Iterator[Compared]]] = {
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


@functools.cache
def find_failed_check(places: tuple[ReplacedAttribute, ...]) -> str | None:
    """Return the first check that fails with ``places`` replaced, and how; None if all pass. Run once in a process."""
    with replace_attributes(None, places):
        for name, check in _CHECKS.items():
            try:
                for actual, expected, tolerance in check():
                    wide = actual.double(), expected.double()
                    if not torch.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True):
                        return f"{name}: wrong values"
            except Exception as error:  # whatever a broken interpreter raises
                return f"{name}: {describe_error(error)}"
    return None
