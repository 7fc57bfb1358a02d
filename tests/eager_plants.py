"""Faults of eager mode: kernels of the CPU with a wrong result in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Change = Callable[[Any], Any]


@contextlib.contextmanager
def eager_fault(
    operator: torch._ops.OpOverload, change: Change, *, only: Callable[..., bool] = lambda *_: True
) -> Iterator[None]:
    """In the block, the CPU kernel of ``operator`` returns its result changed, for the arguments that are meant."""
    kernel = torch.library.get_kernel(operator, "CPU")
    namespace, _, name = operator._schema.name.partition("::")
    overload = operator._schema.overload_name

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        result = kernel.call_boxed(keys, *args, **kwargs)
        return change(result) if only(*args) else result

    library = torch.library.Library(namespace, "IMPL")
    library.impl(f"{name}.{overload}" if overload else name, run, "CPU", with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def scaled(result: Any) -> Any:
    """The first tensor of a result, 5 % too large."""
    return (result[0] * 1.05, *result[1:]) if isinstance(result, tuple) else result * 1.05


def is_strided(*args: object) -> bool:
    """Whether some tensor among the arguments is not contiguous."""
    return any(isinstance(arg, torch.Tensor) and not arg.is_contiguous() for arg in args)
