"""Bugs behind the graph passes: lowerings, code generation for vectors and scalars, kernels that fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._inductor import lowering
from torch._inductor.codegen.cpp import CppOverrides, CppVecKernel, CppVecOverrides

from plants import Expected, Planted, patched, replaced

aten = torch.ops.aten
ERROR = 0.01


def lowering_off(operator: Any, error: float) -> AbstractContextManager[None]:
    """The lowering of an operator is off by a relative ``error``."""
    times = lowering.lowerings[aten.mul.Tensor]
    return replaced(lowering.lowerings, operator, lambda wrapped: lambda *a, **k: times(wrapped(*a, **k), 1 + error))


def lowering_changed(operator: Any, change: Callable[..., Any]) -> AbstractContextManager[None]:
    """The lowering of an operator is ``change(lowering, *its arguments)``."""

    def make(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: change(wrapped, *arguments, **named)

    return replaced(lowering.lowerings, operator, make)


def codegen_off(overrides: Any, name: str) -> AbstractContextManager[None]:
    """The C++ of an operation is its value times 1.01."""
    one = "decltype({0})(1.01f)" if overrides is CppVecOverrides else "1.01"
    return patched(overrides, name, lambda made: lambda *a, **k: f"({made(*a, **k)}) * {one.format(a[0])}")


def codegen_broken(overrides: Any, name: str) -> AbstractContextManager[None]:
    """The C++ of an operation does not compile."""
    return patched(overrides, name, lambda made: lambda *a, **k: f"planted_nowhere({a[0]})")


def minimum_for_maximum() -> AbstractContextManager[None]:
    """Vectorised maxima over rows are minima."""

    def off(combine: Callable[..., str]) -> Callable[..., str]:
        def combined(self: Any, reduction_type: str, *arguments: Any, **named: Any) -> str:
            return combine(self, "min" if reduction_type == "max" else reduction_type, *arguments, **named)

        return combined

    return patched(CppVecKernel, "reduction_combine_vec", off)


def _first_row(wrapped: Callable[..., Any], x: Any, dim: int, index: int) -> Any:
    return wrapped(x, dim, max(index - 1, 0))


def _swapped(wrapped: Callable[..., Any], tensors: Any, dim: int = 0) -> Any:
    return wrapped([*reversed(tensors)], dim)


def _raising(wrapped: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    raise ValueError("planted in a lowering")


def _unchecked(wrapped: Callable[..., Any], weight: Any, indices: Any, *more: Any, **named: Any) -> Any:
    last = int(weight.get_size()[0]) - 1
    return wrapped(weight, lowering.clamp(indices, 0, last), *more, **named)


def plants() -> list[Planted]:
    """The plants of this module."""
    low, code = ("lowering",), ("codegen",)
    return [
        Planted("lowering", lambda: lowering_off(aten.sigmoid.default, ERROR), _POINTWISE, Expected(low, ("sigmoid",))),
        Planted(
            "lowering of a reduction",
            lambda: lowering_off(aten.amax.default, ERROR),
            _REDUCTION,
            Expected(low, ("amax",)),
        ),
        Planted(
            "lowering of a view",
            lambda: lowering_changed(aten.select.int, _first_row),
            _SELECT,
            Expected(low, ("select",)),
        ),
        Planted(
            "lowering of a concatenation",
            lambda: lowering_changed(aten.cat.default, _swapped),
            _CAT,
            Expected(low, ("cat",)),
        ),
        Planted(
            "lowering that raises",
            lambda: lowering_changed(aten.sigmoid.default, _raising),
            _POINTWISE,
            Expected(low, ("sigmoid",)),
        ),
        Planted(
            "lost check of a lowering",
            lambda: lowering_changed(aten.embedding.default, _unchecked),
            _EMBEDDING,
            Expected(low, ("embedding",)),
        ),
        Planted("lowering of erf", lambda: lowering_off(aten.erf.default, ERROR), _ERF, Expected(low, ("erf",))),
        Planted("vectorised code of erf", lambda: codegen_off(CppVecOverrides, "erf"), _ERF, Expected(code, ("erf",))),
        Planted("vectorised code", lambda: codegen_off(CppVecOverrides, "exp"), _POINTWISE, Expected(code, ("exp",))),
        Planted(
            "vectorised code of a reduction",
            minimum_for_maximum,
            _REDUCTION,
            Expected(code, ("amax", "max")),
        ),
        Planted("scalar code", lambda: codegen_off(CppOverrides, "tanh"), _SCALAR, Expected(code, ("tanh",))),
        Planted(
            "code that does not compile",
            lambda: codegen_broken(CppVecOverrides, "exp"),
            _POINTWISE,
            Expected(code, ("exp",)),
        ),
    ]


_POINTWISE = """
import torch
def f(x, y):
    return torch.sigmoid(x) * torch.exp(y) + torch.sin(x)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64), torch.randn(4, 64))
"""
_REDUCTION = """
import torch
def f(x, y):
    z = x * y
    return torch.cos(z) - z.amax(-1, keepdim=True)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64), torch.randn(4, 64))
"""
_SELECT = """
import torch
def f(x, y):
    return torch.exp(x[2]) + y * 2
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64), torch.randn(64))
"""
_CAT = """
import torch
def f(x, y):
    return torch.cat([torch.sin(x), y], 0) * 2
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64), torch.randn(4, 64))
"""
_EMBEDDING = """
import torch
import torch.nn.functional as F
def f(i, w):
    return F.embedding(i, w) * 2
def make():
    torch.manual_seed(0)
    return f, (torch.tensor([0, 3, 7]), torch.randn(4, 8))
"""
_ERF = """
import torch
def f(x, y):
    return torch.erf(x) * y + torch.tanh(y)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64), torch.randn(4, 64))
"""
_SCALAR = """
import torch
def f(x):
    return torch.tanh(x.sum()) * 2, torch.sin(x)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 64),)
"""
