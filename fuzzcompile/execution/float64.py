"""The reference: the same program in float64, whatever low-precision dtypes its code names.

Casting parameters and inputs is not enough: a program may say ``.to(torch.bfloat16)``, create constants
in float32 or run under autocast. :class:`Float64Mode` works below autograd, on ATen operators, so it sees
every such cast in forward and backward, however the user spelled it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.execution.tensors import LOW_FLOATS

_CASTS = {"aten::_to_copy", "prims::convert_element_type", "aten::to"}
_RANDOM_FACTORIES = {"aten::rand", "aten::randn", "aten::normal"}
_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


class Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run each operator in float64.

    With ``keep_casts`` a cast to a narrower floating type still rounds the values to that type (the result
    stays float64): the program as its author wrote it. Without, such casts change nothing: the program as
    exact arithmetic has it. ``saw_cast`` tells whether the two can differ at all.
    """

    def __init__(self, *, keep_casts: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep_casts = keep_casts
        self.saw_cast = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in _RANDOM_FACTORIES:
            # Drawn in float64 they would be other numbers than the program draws.
            return pytree.tree_map(_widen, func(*args, **kwargs))
        rounding = self._narrower_cast(func, args, kwargs)
        args, kwargs = pytree.tree_map(_widen, (args, kwargs))
        # half_to_float promises a half input, and there is none any more.
        if func._schema.name in ("aten::_softmax", "aten::_log_softmax"):
            args = (*args[:2], False, *args[3:])
        result = func(*args, **kwargs)
        if rounding is not None and self.keep_casts:
            return result.to(rounding).to(torch.float64)
        if any(output.alias_info is not None for output in func._schema.returns):
            return result  # a view, or the target of an in-place write: its identity matters
        # Factories that name no dtype make float32, into which an in-place write would be lost.
        return pytree.tree_map(_widen, result)

    def _narrower_cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
        if func._schema.name not in _CASTS or not isinstance(args[0], torch.Tensor):
            return None
        target = kwargs.get("dtype")
        if target is None:
            target = next((value for value in args[1:] if isinstance(value, torch.dtype)), None)
        if target not in LOW_FLOATS or not args[0].dtype.is_floating_point:
            return None
        if target is not torch.float32:
            self.saw_cast = True
            return target
        return None


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype in LOW_FLOATS:
            return value.to(torch.float64)
        return value.to(_COMPLEX[value.dtype]) if value.dtype in _COMPLEX else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in LOW_FLOATS else _COMPLEX.get(value, value)
    return value
