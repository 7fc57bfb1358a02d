"""The same fault on either side: a kernel of eager mode that is wrong, or what the compiler has in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._inductor import decomposition, lowering

aten = torch.ops.aten
Change = Callable[[Any], Any]

_SOURCE = """
import torch
import torch.nn.functional as F

BACKWARD = {backward}


def make():
    torch.manual_seed(0)

    def program(x, w):
        return {body}

    return program, tuple(torch.randn(shape, dtype=torch.{dtype}, requires_grad={backward}) for shape in ({shape}, 8))
"""


def write_program(body: str, *, backward: bool = False, dtype: str = "float32", shape: tuple[int, ...] = (4, 8)) -> str:
    """A case that returns an expression of ``x`` and ``w``."""
    return _SOURCE.format(body=body, backward=backward, dtype=dtype, shape=shape)


class SharedFault(NamedTuple):
    """An operator that eager mode and the compiler compute by different code, and a program that calls it."""

    operator: Any
    body: str
    backward: bool = False

    def __str__(self) -> str:
        return str(self.operator)


FAULTS = (
    SharedFault(aten.gelu.default, "F.gelu(x) * 2"),
    SharedFault(aten.elu.default, "F.elu(x)"),
    SharedFault(aten.hardswish_backward.default, "F.hardswish(x * 4)", backward=True),
    SharedFault(aten._softmax.default, "torch.softmax(x, -1) + 1"),
    SharedFault(aten._log_softmax.default, "torch.log_softmax(x, -1) * 2"),
    SharedFault(aten.native_layer_norm.default, "F.layer_norm(x, (8,))"),
    SharedFault(aten.native_layer_norm_backward.default, "F.layer_norm(x, (8,), w)", backward=True),
    SharedFault(aten.native_group_norm.default, "F.group_norm(x, 2)"),
    SharedFault(aten.exp.default, "torch.exp(x)"),
    SharedFault(aten.tanh.default, "torch.tanh(x)"),
    SharedFault(aten.sigmoid.default, "torch.sigmoid(x)"),
    SharedFault(aten.silu.default, "F.silu(x) + 1"),
    SharedFault(aten.silu_backward.default, "F.silu(x)", backward=True),
    SharedFault(aten.gelu_backward.default, "F.gelu(x)", backward=True),
    SharedFault(aten._softmax_backward_data.default, "torch.softmax(x, -1)", backward=True),
    SharedFault(aten.var.correction, "x.var(-1)"),
    SharedFault(aten.mean.dim, "x.mean(-1) * 3"),
    SharedFault(aten.softplus.default, "F.softplus(x)", backward=True),
    SharedFault(aten.logaddexp.default, "torch.logaddexp(x, x * 2)"),
    SharedFault(aten.glu.default, "F.glu(x)", backward=True),
    SharedFault(aten.leaky_relu.default, "F.leaky_relu(x)"),
    SharedFault(aten.mse_loss.default, "F.mse_loss(x, x * 2 + 1)"),
    SharedFault(aten.gather.default, "torch.gather(x, 1, (x * 0).long())"),
    SharedFault(aten.embedding.default, "F.embedding((x * 0).long(), w.view(4, 2))"),
)


@contextlib.contextmanager
def _replaced_kernel(operator: torch._ops.OpOverload, run: Callable[..., object], key: str) -> Iterator[None]:
    """In the block, ``run`` is the kernel of ``operator`` for a dispatch key; it is given the key set first."""
    namespace, _, name = operator._schema.name.partition("::")
    overload = operator._schema.overload_name
    library = torch.library.Library(namespace, "IMPL")
    library.impl(f"{name}.{overload}" if overload else name, run, key, with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def eager_fault(
    operator: torch._ops.OpOverload, change: Change | None = None, *, only: Callable[..., bool] = lambda *_: True
) -> Iterator[None]:
    """In the block, the CPU kernel of ``operator`` returns its result changed, for the arguments that are meant."""
    kernel = torch.library.get_kernel(operator, "CPU")

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        result = kernel.call_boxed(keys, *args, **kwargs)
        return (change or scaled)(result) if only(*args) else result

    with _replaced_kernel(operator, run, "CPU"):
        yield


def scaled(result: Any) -> Any:
    """The first tensor of a result, 5 % too large."""
    return (result[0] * 1.05, *result[1:]) if isinstance(result, tuple) else result * 1.05


def is_strided(*args: object) -> bool:
    """Whether some tensor among the arguments is not contiguous."""
    return any(isinstance(arg, torch.Tensor) and not arg.is_contiguous() for arg in args)


@contextlib.contextmanager
def compiler_fault(operator: torch._ops.OpOverload) -> Iterator[str]:
    """In the block, the decomposition of ``operator``, which others may call too, or its lowering is as far off.

    Yields:
        The stage.
    """
    with contextlib.ExitStack() as stack:
        if operator in decomposition.decompositions:
            right = decomposition.decompositions[operator]

            def decomposed(*args: object, **kwargs: object) -> object:
                result = right(*args, **kwargs)
                return result if result is NotImplemented else scaled(result)

            for table in (decomposition.decompositions, torch._decomp.decomposition_table):
                if operator in table:
                    stack.enter_context(mock.patch.dict(table, {operator: decomposed}))
            yield "decomposition"
            return
        lowered = lowering.lowerings[operator]

        def wrong(*args: object, **kwargs: object) -> object:
            result = lowered(*args, **kwargs)
            return lowering.mul(result, 1.05 if result.get_dtype().is_floating_point else 2)

        stack.enter_context(mock.patch.dict(lowering.lowerings, {operator: wrong}))
        yield "lowering"


@contextlib.contextmanager
def gradient_fault(operator: torch._ops.OpOverload, argument: int = 0, factor: float = 1.05) -> Iterator[None]:
    """In the block, autograd's formula for ``operator`` gives a wrong gradient for one argument; values are right."""
    kernel = torch.library.get_kernel(operator, "AutogradCPU")

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * factor

    def run(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> object:
        given = [Identity.apply(arg) if at == argument and arg.requires_grad else arg for at, arg in enumerate(args)]
        return kernel.call_boxed(keys, *given, **kwargs)

    with _replaced_kernel(operator, run, "AutogradCPU"):
        yield
