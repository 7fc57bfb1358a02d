"""Running calls of a target's graph on tensors of the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.compiler.target.operators import on_cpu, why_not_on_cpu
from fuzzcompile.execution.nested import run_inside, runs_functions

_CPU = torch.device("cpu")
_HALF = (torch.float16, torch.bfloat16)
# Error messages of CPU kernels that lack a dtype.
_LACKS = ("not implemented for", "Could not run", "not supported for", "is only supported for")
T = TypeVar("T")


class NotOnCpu(Exception):
    """A graph of the target holds an operator that cannot be computed on the CPU: its values are not known."""


def lacks_kernel(message: str) -> bool:
    """Return whether an error message says that the CPU has no kernel for an operator or a dtype."""
    return any(text in message for text in _LACKS)


def devices_on_cpu(values: T) -> T:
    """The same arguments with the CPU for every device of the target."""
    return pytree.tree_map(_placed, values)  # type: ignore[no-any-return]


def call_on_cpu(operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Call an operator of a target's graph with arguments on the CPU.

    What the CPU lacks is computed by a reference; where it lacks only half precision, in float32, rounded once.

    Raises:
        NotOnCpu: there is no way to compute the operator on the CPU.
    """
    args, kwargs = devices_on_cpu(args), devices_on_cpu(kwargs)
    called, why = _way_of(operator)
    if why is not None:
        raise NotOnCpu(why)
    try:
        return called(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if not lacks_kernel(str(error)):
            raise
        return _in_float32(operator, args, kwargs, error)


class OnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that runs operators on the CPU that name the target or that the CPU lacks, nested ones included."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` by :func:`call_on_cpu`."""
        if runs_functions(func):
            return run_inside(self, func, devices_on_cpu(args), devices_on_cpu(kwargs or {}))
        return call_on_cpu(func, args, kwargs or {})


@functools.lru_cache(maxsize=4096)
def _way_of(operator: Callable[..., object]) -> tuple[Callable[..., object], str | None]:
    return on_cpu(operator) or operator, why_not_on_cpu(operator)


def _in_float32(
    operator: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], lacking: Exception
) -> object:
    dtypes = {leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    narrow = [dtype for dtype in _HALF if dtype in dtypes]
    why = f"{operator} cannot be computed on the CPU: {str(lacking).strip().splitlines()[0]}"
    schema = getattr(operator, "_schema", None)
    if len(narrow) != 1 or schema is None or schema.is_mutable:
        raise NotOnCpu(why) from lacking

    def cast(source: torch.dtype, target: torch.dtype) -> Callable[[object], object]:
        return lambda leaf: leaf.to(target) if isinstance(leaf, torch.Tensor) and leaf.dtype is source else leaf

    args, kwargs = pytree.tree_map(cast(narrow[0], torch.float32), (args, kwargs))
    try:
        result = operator(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        raise NotOnCpu(why) from lacking
    return pytree.tree_map(cast(torch.float32, narrow[0]), result)


def _placed(value: object) -> object:
    if isinstance(value, torch.device):
        return _CPU
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
