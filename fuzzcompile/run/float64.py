"""The reference: the same program in float64, whatever low-precision dtypes its code names.

Casting parameters and inputs is not enough: a program may call ``.to(torch.bfloat16)``, create constants in float32
or run under autocast. :class:`Float64Mode` works below autograd, on ATen operators, so it handles every such cast in
forward and backward, however the user spelled it.

Kernels that do not support float64 are replaced: fused attention by :mod:`fuzzcompile.run.reference.fused_attention`,
grouped products by :mod:`fuzzcompile.run.reference.device_kernels`.

The casts of ``torch.autocast`` do not occur: it leaves float64 alone, so a region under autocast is computed in
float64 throughout, and ``saw_cast`` does not reflect it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.model.facts import facts
from fuzzcompile.run.nested import Operator, run_inside, runs_functions
from fuzzcompile.run.reference import fused_attention
from fuzzcompile.run.reference.device_kernels import grouped_mm
from fuzzcompile.run.tensors import LOW_FLOATS, doubled, mapped

_OPERATORS = facts().operators
_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


class Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run each operator in float64.

    With ``keep_casts`` a cast to a narrower floating type still rounds the values to that type (the result
    stays float64): the program as its author wrote it. Without, such casts change nothing: the program as
    exact arithmetic has it. ``saw_cast`` says whether the two can differ at all (but see above on autocast).

    Random numbers are drawn in the dtype in which the program draws them, since other dtypes draw others.
    ``native`` is the original dtype of tensors that were converted to float64: the draws are right for programs of
    one floating dtype, and for programs that name a lower dtype for their draws.

    Low-precision tensors from outside (attributes that are not parameters, globals) get one float64 twin per storage
    for the life of the mode, which later reads and writes use. The tensors themselves do not change.
    """

    supports_higher_order_operators = True

    def __init__(self, *, keep_casts: bool, native: torch.dtype = torch.float32) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep_casts = keep_casts
        self.saw_cast = False
        self._native = native
        self._defaults = _NativeDefaults(native)
        # Each with its source: the address of a freed storage may be given to a new one.
        self._twins: dict[tuple[int, torch.dtype, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def __enter__(self) -> Float64Mode:
        """Enter the mode, and the mode for defaults that depend on the native dtype."""
        self._defaults.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Leave both."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._defaults.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Operator, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Run ``func`` in float64."""
        kwargs = kwargs or {}
        if runs_functions(func):
            return run_inside(self, func, *pytree.tree_map(self._wide, (args, kwargs)))
        name = func._schema.name.removeprefix("aten::")
        if name.removesuffix("_") in _OPERATORS.drawing and torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn(func, args, kwargs)
        if name == "native_dropout":
            return self._dropout(func, *args, **kwargs)
        rounding = self._narrower_cast(func, args, kwargs)
        args, kwargs = mapped(self._wide, (args, kwargs))
        # half_to_float requires a half input, which is float64 by now.
        if func._schema.name in _OPERATORS.softmax:
            args = (*args[:2], False, *args[3:])
        written_out = fused_attention.find_stand_in(func)
        if written_out is not None and not fused_attention.has_float64(func):
            return written_out(*args, **kwargs)
        if func is getattr(torch.ops.aten._grouped_mm, "default", None):
            return grouped_mm(*args, **kwargs)
        result = func(*args, **kwargs)
        if _makes_floats(func, args, kwargs, result):
            result = func(*args, **{**kwargs, "dtype": torch.float64})
        if rounding is not None and self.keep_casts:
            return result.to(rounding).to(torch.float64)
        if any(output.alias_info is not None for output in func._schema.returns):
            return result  # a view, or the target of an in-place write: it must stay the same tensor
        # Factories that name no dtype make float32, into which an in-place write would be lost.
        return mapped(_widen, result)

    def _drawn(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Draw in the native dtype, and widen what was drawn."""
        narrow_args, narrow_kwargs = pytree.tree_map(self._narrow, (args, kwargs))
        drawn = func(*narrow_args, **narrow_kwargs)
        if all(returned.alias_info is None for returned in func._schema.returns):
            return pytree.tree_map(_widen, drawn)
        target = self._wide_tensor(kwargs["out"] if "out" in kwargs else args[0])
        return target.copy_(drawn)

    def _dropout(
        self, func: Operator, source: torch.Tensor, p: float, train: bool | None = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the mask in the native dtype, and multiply in float64."""
        _, mask = func(self._narrow(source), p, train)
        wide = self._wide_tensor(source)
        if train is False:
            return wide.clone(), mask
        return wide * mask * (0.0 if p == 1 else 1 / (1 - p)), mask

    def _wide(self, value: object) -> object:
        """The float64 form of an argument; a tensor that can be written to has the same one at every call."""
        return self._wide_tensor(value) if isinstance(value, torch.Tensor) else _widen(value)

    def _wide_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if doubled(value.dtype) == value.dtype:
            return _widen_tensor(value)
        if value.layout != torch.strided or value.is_nested or value.is_conj() or value.is_neg():
            return _widen_tensor(value)
        storage = value.untyped_storage()
        if storage.data_ptr() == 0:
            return _widen_tensor(value)
        key = (storage.data_ptr(), value.dtype, value.device)
        if key not in self._twins:
            count = storage.nbytes() // value.element_size()
            flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, 0, (count,), (1,))
            self._twins[key] = flat, flat.to(doubled(value.dtype))
        return self._twins[key][1].as_strided(value.size(), value.stride(), value.storage_offset())

    def _narrow(self, value: object) -> object:
        """A copy of an argument in the dtype that it has in the program, laid out in the same way; a dtype likewise."""
        if value is torch.float64:  # asked of a tensor: ``rand(shape, dtype=x.dtype)``
            return self._native
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        dtype = value.dtype
        if dtype is torch.float64:
            dtype = self._native
        elif dtype is torch.complex128 and self._native is not torch.float64:
            dtype = torch.complex64
        wide = self._wide_tensor(value)
        if wide.layout != torch.strided or 0 in wide.stride():
            return wide.to(dtype)
        return torch.empty_strided(wide.size(), wide.stride(), dtype=dtype, device=wide.device).copy_(wide)

    def _narrower_cast(self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> torch.dtype | None:
        """The type that a cast of the program rounds to, if that is shorter than float32."""
        if func._schema.name not in _OPERATORS.casts or not isinstance(args[0], torch.Tensor):
            return None
        dtypes = [value for value in (kwargs.get("dtype"), *args[1:]) if isinstance(value, torch.dtype)]
        target = dtypes[0] if dtypes else None
        if target not in LOW_FLOATS or target is torch.float32 or not args[0].dtype.is_floating_point:
            return None
        self.saw_cast = True
        return target


def _makes_floats(func: Operator, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> bool:
    """Whether a factory such as ``linspace`` computed its numbers in float32 because no dtype was given."""
    if not isinstance(result, torch.Tensor) or result.dtype not in LOW_FLOATS or kwargs.get("dtype") is not None:
        return False
    if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        return False
    return any(argument.name == "dtype" and argument.kwarg_only for argument in func._schema.arguments)


class _NativeDefaults(TorchFunctionMode):
    """Defaults that torch derives from the dtype of an argument, as in the native program.

    ``rms_norm`` without ``eps`` uses that of float32 (also for shorter types), which is a constant in the compiler's
    graph. In float64 the constant would differ and change the gradient by 1e-6 of its size.
    """

    def __init__(self, native: torch.dtype) -> None:
        super().__init__()
        self._native = native

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run ``func`` with such defaults filled in."""
        kwargs = kwargs or {}
        if func is torch.rms_norm and self._native is not torch.float64:
            eps = args[3] if len(args) > 3 else kwargs.get("eps")
            args = args[:3]
            kwargs = {**kwargs, "eps": torch.finfo(torch.float32).eps if eps is None else eps}
        return func(*args, **kwargs)


def _widen_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in LOW_FLOATS:
        return tensor.to(torch.float64)
    return tensor.to(_COMPLEX[tensor.dtype]) if tensor.dtype in _COMPLEX else tensor


def _widen(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return _widen_tensor(value)
    if isinstance(value, torch.dtype):
        return torch.float64 if value in LOW_FLOATS else _COMPLEX.get(value, value)
    return value
