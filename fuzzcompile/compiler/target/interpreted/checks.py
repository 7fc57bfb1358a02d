"""Checks of the interpreter, before a verdict rests on it: the results of small kernels against torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from fuzzcompile.compiler.target.interpreted import check_kernels as kernels
from fuzzcompile.compiler.target.interpreted import execution, libdevice
from fuzzcompile.compiler.target.interpreted.functions import interpreted
from fuzzcompile.compiler.target.interpreted.log import Grid, Limits, Order

Check = Callable[[], bool]
_N = 64
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def _run(kernel: Callable[..., None], *values: object, grid: Grid = (1, 1, 1), **constants: object) -> None:
    names = list(kernel.__annotations__)
    arguments = dict(zip(names, values, strict=False)) | constants
    signature = dict.fromkeys(constants, "constexpr")
    execution.run(kernel.__name__, kernel, arguments, signature, grid, Order.FORWARD, Limits())


def _values(dtype: torch.dtype = torch.float32, count: int = _N) -> torch.Tensor:
    """Numbers of both signs and many magnitudes, the same every time."""
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(count, generator=generator) * 4).to(dtype)


def _same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 0.0) -> bool:
    wide = left.double(), right.double()
    return torch.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True)


def _casts() -> bool:
    for narrow in _NARROW:
        source = torch.cat([_values(), torch.tensor([1.00390625, 1.01171875, 0.0, 1e-7])])
        source = torch.cat([source, source.new_zeros(_N - 4)])
        rounded, widened = torch.zeros_like(source, dtype=narrow), torch.zeros_like(source)
        _run(kernels.convert, source, rounded, n=len(source))
        _run(kernels.convert, rounded, widened, n=len(source))
        if not (_same(rounded, source.to(narrow)) and _same(widened, source.to(narrow).float())):
            return False
    return True


def _arithmetic() -> bool:
    for dtype in _FLOATS:
        x, y = _values(dtype), _values(dtype).flip(0)
        out = torch.zeros_like(x)
        _run(kernels.multiply_add, x, y, out, n=_N)
        if not _same(out, x * y + y):
            return False
    return True


def _integers() -> bool:
    x = torch.arange(-32, 32, dtype=torch.int32)
    y = torch.where(x % 2 == 0, 3, -5).to(torch.int32)
    quotient, remainder, shifted = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    _run(kernels.divide, x, y, quotient, remainder, n=_N)
    _run(kernels.shift, x, shifted, n=_N)
    truncated = torch.div(x, y, rounding_mode="trunc")
    return _same(quotient, truncated) and _same(remainder, x - truncated * y) and _same(shifted, x >> 1)


def _masks() -> bool:
    x, out = torch.ones(_N), torch.full((_N,), -1.0)
    _run(kernels.masked, x, out, 10, n=_N)
    expected = torch.full((_N,), -1.0)
    expected[:11] = torch.tensor([*range(1, 11), 17.0])
    return _same(out, expected)


def _products() -> bool:
    for dtype in (*_FLOATS, torch.int8):
        a, b = _values(dtype, 256).reshape(16, 16), _values(dtype, 256).flip(0).reshape(16, 16)
        out = torch.zeros(16, 16, dtype=torch.float32 if dtype.is_floating_point else torch.int32)
        _run(kernels.product, a, b, out, n=16)
        if not _same(out, a.double() @ b.double(), 1e-4):
            return False
    return True


def _reductions() -> bool:
    for dtype in (*_FLOATS, torch.int32):
        x = _values(dtype, 4 * _N).reshape(4, _N)
        x[1, 5] = x[1, 9] = 100
        total, high, low = (torch.zeros(4, dtype=dtype) for _ in range(3))
        place = torch.zeros(4, dtype=torch.int32)
        _run(kernels.fold, x, total, high, low, place, rows=4, n=_N)
        tolerance = 0.5 if dtype in _FLOATS[1:] else 1e-4
        extremes = _same(high, x.amax(1)) and _same(low, x.amin(1)) and _same(place, x.argmax(1))
        if not (extremes and _same(total, x.double().sum(1), tolerance)):
            return False
    return True


def _combined() -> bool:
    x = _values(count=4 * _N).reshape(4, _N)
    mean, square = torch.zeros(4), torch.zeros(4)
    _run(kernels.moments, x, mean, square, rows=4, n=_N, combine=interpreted(kernels.welford))
    return _same(mean, x.double().mean(1), 1e-5) and _same(square, x.double().var(1, correction=0) * _N, 1e-2)


def _scans() -> bool:
    x = _values()
    forward, backward, last = (torch.zeros_like(x) for _ in range(3))
    _run(kernels.scan, x, forward, backward, last, n=_N, combine=interpreted(kernels.later))
    wide = x.double()
    reverse = wide.flip(0).cumsum(0).flip(0)
    return _same(forward, wide.cumsum(0), 1e-4) and _same(backward, reverse, 1e-4) and _same(last, x)


def _sorts() -> bool:
    x = _values()
    out = torch.zeros_like(x)
    _run(kernels.arrange, x, out, n=_N)
    return _same(out, x.sort().values)


def _atomics() -> bool:
    for dtype in (*_FLOATS, torch.int32):
        x, total = torch.arange(_N).remainder(3).to(dtype), torch.zeros(4, dtype=dtype)
        _run(kernels.collect, x, total, n=_N)
        if not _same(total, x.reshape(-1, 4).sum(0)):
            return False
    return True


def _random() -> bool:
    """The known answer of philox4x32-10 for key and counter zero, from the Random123 distribution."""
    out = torch.zeros(4, dtype=torch.int32)
    _run(kernels.draw, out, n=1)
    return [word % 2**32 for word in out.tolist()] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def _programs() -> bool:
    out = torch.zeros(12, dtype=torch.int32)
    _run(kernels.each_program, out, n=1, grid=(3, 4, 1))
    return out.tolist() == list(range(12))


# Functions of libdevice that Python's math module has too.
_MATH: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {name: getattr(math, name) for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "erf", "erfc",
     "tanh", "sinh", "cosh", "sin", "cos", "tan", "atan", "asinh", "lgamma", "floor", "ceil", "trunc")}
)  # fmt: skip


def _library() -> bool:
    x, replacements = _values().abs() + 0.25, libdevice.functions()
    for name, function in _MATH.items():
        out = torch.zeros_like(x)
        _run(kernels.apply, x, out, n=_N, function=replacements[name])
        if not _same(out, torch.tensor([function(value) for value in x.tolist()]), 1e-5):
            return False
    return True


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "casts": _casts,
        "arithmetic": _arithmetic,
        "integer division": _integers,
        "masks": _masks,
        "matrix products": _products,
        "reductions": _reductions,
        "reductions by a combine function": _combined,
        "scans": _scans,
        "sorts": _sorts,
        "atomics": _atomics,
        "random numbers": _random,
        "grids": _programs,
        "libdevice": _library,
    }
)


@functools.cache
def failed() -> str | None:
    """The first check that fails, and how; None if all pass. Run once in a process."""
    from fuzzcompile.compiler.target.interpreted.places import DEVICE_FUNCTIONS
    from fuzzcompile.compiler.target.places import installed

    with installed(None, DEVICE_FUNCTIONS):
        for name, check in CHECKS.items():
            try:
                if not check():
                    return f"{name}: wrong values"
            except Exception as error:  # whatever a broken interpreter raises
                return f"{name}: {type(error).__name__}: {error}"
    return None


def outcome(name: str) -> bool:
    """Run one check anew, and return whether it passes."""
    from fuzzcompile.compiler.target.interpreted.places import DEVICE_FUNCTIONS
    from fuzzcompile.compiler.target.places import installed

    with installed(None, DEVICE_FUNCTIONS):
        return CHECKS[name]()
