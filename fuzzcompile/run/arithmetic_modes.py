"""The reference: the same program in float64, whatever low-precision dtypes its code names.

Casting parameters and inputs is not enough: a program may call ``.to(torch.bfloat16)``, create constants in float32
or run under autocast. :class:`Float64Mode` works below autograd, on ATen operators, so it handles every such cast in
forward and backward, however the user spelled it.

Kernels that do not support float64 are replaced: fused attention by :mod:`fuzzcompile.run.reference.fused_attention`,
grouped products and gradient scalers by :mod:`fuzzcompile.run.reference.device_kernels`.

The casts of ``torch.autocast`` do not occur: it leaves float64 alone, so a region under autocast is computed in
float64 throughout, and ``saw_cast`` does not reflect it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.model.facts import facts
from fuzzcompile.run.reference import fused_attention
from fuzzcompile.run.reference.device_kernels import find_scaling, grouped_mm
from fuzzcompile.run.tensors import (
    LOW_COMPLEX,
    LOW_FLOATS,
    Operator,
    double_dtype,
    flatten_storage,
    float64_by_default,
    has_meta_tensors,
    is_fake_class,
    is_higher_order,
    is_inexact,
    is_wrapper_class,
    map_leaves,
    materialize_zeros,
    name_collective,
    run_inside,
)

_OPERATORS = facts().operators


class Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run each operator in float64.

    With ``keep_casts`` a cast to a narrower floating type still rounds the values to that type (the result stays
    float64): the program as its author wrote it. Without, such casts change nothing. ``saw_cast`` says whether the two
    can differ at all (but see above on autocast).

    Random numbers are drawn in the dtype in which the program draws them, since other dtypes draw others. ``native`` is
    the original dtype of tensors that were converted to float64: the draws are right for programs of one floating
    dtype, and for programs that name a lower dtype for their draws.

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
        self._defaults.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._defaults.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Operator, types: Collection[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if is_higher_order(func):
            return run_inside(self, func, *pytree.tree_map(self._twin, (args, kwargs)))
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        if any(map(is_fake_class, types)):
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name.removesuffix("_") in _OPERATORS.drawing and torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw(func, args, kwargs)
        if name == "native_dropout":
            return self._run_dropout(func, *args, **kwargs)
        if name in ("view", "view_copy") and func._overloadname == "dtype":
            return self._twin(func(*pytree.tree_map(self._narrow, args[:1]), *args[1:], **kwargs))
        rounding = self._find_narrower_cast(func, args, kwargs)
        args, kwargs = map_leaves(self._twin, (args, kwargs))
        # half_to_float requires a half input, which is float64 by now.
        if func._schema.name in _OPERATORS.softmax:
            args = (*args[:2], False, *args[3:])
        written_out = fused_attention.find_stand_in(func)
        if written_out is not None and not fused_attention.has_float64(func):
            return written_out(*args, **kwargs)
        if func is getattr(torch.ops.aten._grouped_mm, "default", None):
            return grouped_mm(*args, **kwargs)
        scaling = find_scaling(func, self._native)
        if scaling is not None:
            return scaling(*args, **kwargs)
        with float64_by_default():
            result = self.compute(func, args, kwargs)
        if isinstance(result, float | int) and func.overloadpacket is torch.ops.aten.to:
            # A number in a tensor's place that has this dtype already comes back as a number; a tensor is wanted.
            result = torch.full((), result, dtype=torch.float64)
        if rounding is not None and self.keep_casts:
            return result.to(rounding).to(torch.float64)
        if any(output.alias_info is not None for output in func._schema.returns):
            return result  # a view, or the target of an in-place write: it must stay the same tensor
        return map_leaves(_widen, result)

    def compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operator on float64 arguments, by its own kernel."""
        return func(*args, **kwargs)

    def _draw(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Draw in the native dtype, and widen what was drawn."""
        narrow_args, narrow_kwargs = pytree.tree_map(self._narrow, (args, kwargs))
        drawn = func(*narrow_args, **narrow_kwargs)
        if all(returned.alias_info is None for returned in func._schema.returns):
            return pytree.tree_map(_widen, drawn)
        return self._twin(kwargs["out"] if "out" in kwargs else args[0]).copy_(drawn)

    def _run_dropout(
        self, func: Operator, source: torch.Tensor, p: float, train: bool | None = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _, mask = func(self._narrow(source), p, train)
        wide = self._twin(source)
        if train is False:
            return wide.clone(), mask
        return wide * mask * (0.0 if p == 1 else 1 / (1 - p)), mask

    def _twin(self, value: Any) -> Any:
        """The float64 form of an argument; a tensor that can be written to has the same one at every call."""
        if not isinstance(value, torch.Tensor) or double_dtype(value.dtype) == value.dtype:
            return _widen(value)
        if value.layout != torch.strided or value.is_nested or value.is_conj() or value.is_neg():
            return _widen(value)
        storage = value.untyped_storage()
        if storage.data_ptr() == 0:
            return _widen(value)
        key = (storage.data_ptr(), value.dtype, value.device)
        if key not in self._twins:
            flat = flatten_storage(value)
            self._twins[key] = flat, flat.to(double_dtype(value.dtype))
        return self._twins[key][1].as_strided(value.size(), value.stride(), value.storage_offset())

    def _narrow(self, value: object) -> object:
        """A copy of an argument in the dtype that it has in the program, laid out in the same way; a dtype likewise."""
        if value is torch.float64:  # asked of a tensor: ``rand(shape, dtype=x.dtype)``
            return self._native
        if not isinstance(value, torch.Tensor) or not is_inexact(value):
            return value
        dtype = value.dtype
        if dtype is torch.float64:
            dtype = self._native
        elif dtype is torch.complex128 and self._native is not torch.float64:
            dtype = torch.complex64
        wide: torch.Tensor = self._twin(value)
        if wide.layout != torch.strided or 0 in wide.stride():
            return wide.to(dtype)
        return torch.empty_strided(wide.size(), wide.stride(), dtype=dtype, device=wide.device).copy_(wide)

    def _find_narrower_cast(
        self, func: Operator, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> torch.dtype | None:
        """The type that a cast of the program rounds to, if that is shorter than float32."""
        if func._schema.name not in _OPERATORS.casts or not isinstance(args[0], torch.Tensor):
            return None
        dtypes = [value for value in (kwargs.get("dtype"), *args[1:]) if isinstance(value, torch.dtype)]
        target = dtypes[0] if dtypes else None
        if target not in LOW_FLOATS or target is torch.float32 or not args[0].dtype.is_floating_point:
            return None
        self.saw_cast = True
        return target


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
        kwargs = kwargs or {}
        if func is torch.rms_norm and self._native is not torch.float64:
            eps = args[3] if len(args) > 3 else kwargs.get("eps")
            args = args[:3]
            kwargs = {**kwargs, "eps": torch.finfo(torch.float32).eps if eps is None else eps}
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    """A tensor or a dtype in float64 (complex in complex128); anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(_widen(value.dtype))
    if not isinstance(value, torch.dtype):
        return value
    return torch.float64 if value in LOW_FLOATS else LOW_COMPLEX.get(value, value)


class UlpNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Move each computed floating result by -1, 0 or +1 ulp, drawn from a generator of its own.

    Operators that add up many terms get their terms moved as well (in float32 and float64: shorter types are
    accumulated in float32, whose rounding does not show in them). The program's own random stream is left
    alone, so dropout masks stay those of the unperturbed run. Memory that nobody wrote to (``torch.empty``) is filled
    with NaNs by an odd seed, and with zeros by an even one.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Operator, types: Collection[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if is_higher_order(func):
            return run_inside(self, func, args, kwargs or {})
        if any(map(is_wrapper_class, types)):
            return NotImplemented
        # A collective may still fill what it returns, and reads what the other processes have moved as well.
        if any(map(is_fake_class, types)) or name_collective(func) is not None:
            return func(*args, **(kwargs or {}))
        schema = func._schema
        name = schema.name.rsplit("::")[-1]
        args, kwargs = map_leaves(materialize_zeros, (args, kwargs or {}))
        if has_meta_tensors(args, kwargs):
            return func(*args, **kwargs)
        exact = name in _OPERATORS.exact or kwargs.get("rounding_mode") is not None
        # Whole numbers computed from whole numbers are exact, and a program may round them or index with them.
        whole = not exact and all(_is_whole(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
        if name in _OPERATORS.accumulating and not whole:
            args = map_leaves(self._move_term, args)
        result = func(*args, **kwargs)
        if name in _OPERATORS.uninitialised:
            return pytree.tree_map_only(torch.Tensor, self._fill_unwritten, result)
        if name == "_to_copy":  # within vmap, of a number
            return self._vary_undefined(args[0], result) if isinstance(args[0], torch.Tensor) else result
        if not _computes(schema, args):
            return result
        if exact:  # it makes NaNs of other values, or moves those that it is given with their signs
            made = not any(_has_nan(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
            return pytree.tree_map_only(torch.Tensor, self._vary_nan_sign, result) if made else result
        if any(returned.alias_info is not None for returned in schema.returns):  # an in-place write
            for written in pytree.tree_leaves(result):
                if isinstance(written, torch.Tensor):
                    written.copy_(self._move(written, whole=whole))
            return result
        return pytree.tree_map_only(torch.Tensor, functools.partial(self._move, whole=whole), result)

    def _fill_unwritten(self, memory: torch.Tensor) -> torch.Tensor:
        """Memory that nobody has written to, with values varied by seed: whatever reads it has no right answer."""
        if memory.layout is not torch.strided or memory.is_quantized or memory.is_nested:
            return memory
        filling = float("nan") if is_inexact(memory) else True
        return memory.fill_(filling if self.seed % 2 else 0)

    def _vary_undefined(self, source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """The result of a cast, with undefined values varied by seed: C++ defines none for a number out of range."""
        if not source.dtype.is_floating_point or is_inexact(result.dtype):
            return result
        if result.dtype is torch.bool or source.layout is not torch.strided:
            return result
        limits = torch.iinfo(result.dtype)
        inside = (source > float(limits.min) - 1) & (source < float(limits.max) + 1)
        if bool(inside.all()):
            return result
        anything = (0, limits.max, limits.min)[self.seed % 3]
        return torch.where(inside.to(result.device), result, torch.full_like(result, anything))

    def _move_term(self, value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64):
            return self.add_noise(value)
        return value

    def _move(self, value: torch.Tensor, *, whole: bool) -> torch.Tensor:
        if not value.dtype.is_floating_point or value.numel() == 0:
            return value
        moved = self._vary_nan_sign(self.add_noise(value))
        if whole:
            moved = torch.where(_mask_whole_numbers(value), value, moved)
        if moved.stride() == value.stride():
            return moved
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device).copy_(moved)

    def _vary_nan_sign(self, value: torch.Tensor) -> torch.Tensor:
        """The values, with NaNs of a sign that varies by seed: IEEE 754 (6.3) gives the sign of a NaN no meaning."""
        if not _has_nan(value):
            return value
        signed = torch.full_like(value, float("nan")).copysign_(torch.tensor(1.0 if self.seed % 2 else -1.0))
        return torch.where(value.isnan(), signed, value)

    def add_noise(self, value: torch.Tensor) -> torch.Tensor:
        """A floating tensor with each finite element moved by -1, 0 or +1 ulp."""
        if value.device not in self._generators:
            self._generators[value.device] = torch.Generator(value.device).manual_seed(self.seed)
        generator = self._generators[value.device]
        wide = value.double() if value.dtype is torch.float64 else value.float()
        draw = torch.randint(-1, 2, value.shape, generator=generator, device=value.device, dtype=wide.dtype)
        moved = (wide * (1 + torch.finfo(value.dtype).eps * draw)).to(value.dtype)
        return torch.where(torch.isfinite(moved.to(wide.dtype)), moved, value)


def _has_nan(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point or value.element_size() == 1:
        return False
    return value.layout is torch.strided and bool(value.isnan().any())


def _is_whole(value: object) -> bool:
    """Return whether an argument has no rounding in it: whole numbers, or no floating tensor at all."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return True
    if value.layout is not torch.strided:
        return False
    # The first element alone nearly always settles it.
    return not value.numel() or (
        bool(_mask_whole_numbers(value[(0,) * value.dim()])) and bool(_mask_whole_numbers(value).all())
    )


def _mask_whole_numbers(value: torch.Tensor) -> torch.Tensor:
    """Return the mask of whole numbers; the CPU rounds no float8."""
    wide = value.float() if value.element_size() == 1 else value
    return wide == wide.round()


def _computes(schema: torch.FunctionSchema, args: tuple[object, ...]) -> bool:
    """Return whether the operator computes new values from tensors: it is neither a view nor a factory."""
    if any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(args))
