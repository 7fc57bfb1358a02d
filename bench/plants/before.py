"""Bugs before the graph passes: dynamo, decompositions forward and backward, metadata, partitioning."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._inductor import decomposition
from torch._subclasses import FakeTensorMode, fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from plants import Expected, Planted, patched, replaced

aten = torch.ops.aten
ERROR = 0.01


def decomposition_off(operator: Any, error: float, position: int | None = None) -> AbstractContextManager[None]:
    """The result of an operator's decomposition (or that at ``position``) is off by a relative ``error``."""

    def off(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def decomposed(*arguments: Any, **named: Any) -> Any:
            result = wrapped(*arguments, **named)
            if position is None:
                return result * (1 + error)
            return tuple(r * (1 + error) if n == position else r for n, r in enumerate(result))

        return decomposed

    return replaced(decomposition.decompositions, operator, off)


def decomposition_changed(
    operator: Any, change: Callable[[torch.Tensor], torch.Tensor]
) -> AbstractContextManager[None]:
    """The result of an operator's decomposition goes through ``change``."""
    return replaced(decomposition.decompositions, operator, lambda wrapped: lambda *a, **k: change(wrapped(*a, **k)))


@contextlib.contextmanager
def metadata_off(operator: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The fake result of an operator goes through ``change``: layout or dtype are not those of the real one."""

    def make(kept: Any) -> Callable[..., Any]:
        def fake(mode: Any, func: Any, *arguments: Any, **named: Any) -> Any:
            with in_kernel_invocation_manager(mode):
                result = func(*arguments, **named)
            return FakeTensor(mode, change(result), torch.device("cpu"))

        return fake

    # Fake results are cached by their arguments, over the compiles of a process.
    FakeTensorMode.cache_clear()
    try:
        with replaced(fake_impls.op_implementations_dict, operator, make):
            yield
    finally:
        FakeTensorMode.cache_clear()


def add_without_alpha() -> AbstractContextManager[None]:
    """Dynamo forgets the ``alpha`` of ``add_``."""

    def off(method: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: Any, tx: Any, other: Any, *, alpha: Any = None) -> Any:
            return None if alpha is None else self.call_method(tx, "add_", [other], {})

        return add

    return patched(TensorVariable, "method_add_", off)


def plants() -> list[Planted]:
    """The plants of this module."""
    found = [
        Planted(
            "dynamo: argument forgotten",
            add_without_alpha,
            _ADD_ALPHA,
            Expected(("dynamo",), ("add_", "method_add_", "add", "aten.add_")),
        )
    ]
    wrong_values: list[tuple[str, Any, str, float, int | None]] = [
        ("decomposition", aten.gelu.default, _GELU, ERROR, None),
        ("decomposition, small error", aten.gelu.default, _GELU, 1e-5, None),
        ("backward decomposition", aten.native_layer_norm_backward.default, _NORM_TRAINED, ERROR, 0),
        ("backward decomposition of one weight", aten.native_layer_norm_backward.default, _NORM_TRAINED, ERROR, 1),
        ("backward decomposition of softmax", aten._softmax_backward_data.default, _SOFTMAX_TRAINED, ERROR, None),
    ]
    for name, operator, case, error, position in wrong_values:
        install = functools.partial(decomposition_off, operator, error, position)
        found.append(Planted(name, install, case, Expected(("decomposition",), _names(operator))))
    return [
        *found,
        Planted(
            "decomposition of another dtype",
            lambda: decomposition_changed(aten.hardswish.default, lambda r: r.double()),
            _HARDSWISH,
            Expected(("decomposition",), _names(aten.hardswish.default)),
        ),
        Planted(
            "decomposition of another layout",
            lambda: decomposition_changed(aten.hardswish.default, lambda r: r.t().contiguous().t()),
            _HARDSWISH,
            Expected(("decomposition",), _names(aten.hardswish.default)),
        ),
        Planted(
            "meta kernel of another layout",
            lambda: metadata_off(aten._cdist_forward.default, lambda r: r.mT.contiguous().mT),
            _CDIST,
            Expected(("fake_tensor",), _names(aten._cdist_forward.default)),
        ),
        Planted(
            "meta kernel of another dtype",
            lambda: metadata_off(aten._cdist_forward.default, lambda r: r.bfloat16()),
            _CDIST.replace("p=1.0)", "p=1.0) * 2"),
            Expected(("fake_tensor",), _names(aten._cdist_forward.default)),
        ),
        Planted(
            "lost check of a decomposition",
            unchecked_celu,
            _CELU,
            Expected(("decomposition",), _names(aten.celu.default)),
        ),
    ]


@contextlib.contextmanager
def unchecked_celu() -> Iterator[None]:
    """Nothing: celu's decomposition has lost the check of ``alpha`` in torch itself (pytorch#183762)."""
    yield


def _names(operator: Any) -> tuple[str, ...]:
    """An operator with and without its overload."""
    packet = operator.overloadpacket.__name__
    return (packet, f"aten.{packet}", str(operator))


_ADD_ALPHA = """
import torch
def f(x, y, a):
    z = torch.sin(x)
    z.add_(y, alpha=a)
    return z * 2
def make():
    torch.manual_seed(0)
    return f, (torch.randn(3, 5), torch.randn(3, 5), torch.tensor(0.5))
"""
_GELU = """
import torch
import torch.nn.functional as F
def f(x, w):
    return F.gelu(x @ w) + 1
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 16), torch.randn(16, 16))
"""
_NORM_TRAINED = """
import torch
from torch import nn
BACKWARD = True
def make():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
    return module, (torch.randn(4, 16),)
"""
_SOFTMAX_TRAINED = """
import torch
BACKWARD = True
def f(x, y):
    return (x * 2).softmax(-1) * y
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 16, requires_grad=True), torch.randn(4, 16))
"""
_HARDSWISH = """
import torch
import torch.nn.functional as F
def f(x):
    return F.hardswish(x)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 16),)
"""
_CDIST = """
import torch
def f(x, y):
    return torch.cdist(x + 1, y, p=1.0)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(2, 6, 4), torch.randn(2, 5, 4))
"""
_CELU = """
import torch
import torch.nn.functional as F
def f(x):
    return F.celu(torch.sin(x), 0.0)
def make():
    torch.manual_seed(0)
    return f, (torch.randn(4, 16),)
"""
