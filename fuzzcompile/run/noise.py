"""The noise floor: how far rounding alone can carry a program.

Every arithmetic operator's floating result is moved by at most one unit in the last place, at random (stochastic
arithmetic, as in Verificarlo). Perturbing every operator rather than the inputs also covers programs whose inputs are
integers or whose constants are in the code, and does not move inputs that eager and compiled share exactly.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.model.facts import facts
from fuzzcompile.run.nested import Operator, run_inside, runs_functions
from fuzzcompile.run.tensors import mapped, with_memory, without_values

_OPERATORS = facts().operators


class UlpNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Move each computed floating result by -1, 0 or +1 ulp, drawn from a generator of its own.

    Operators that add up many terms get their terms moved as well (in float32 and float64: shorter types are
    accumulated in float32, whose rounding does not show in them). The program's own random stream is left
    alone, so dropout masks stay those of the unperturbed run.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Operator, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Run ``func`` and move what it computes."""
        if runs_functions(func):
            return run_inside(self, func, args, kwargs or {})
        schema = func._schema
        name = schema.name.rsplit("::")[-1]
        args, kwargs = mapped(with_memory, (args, kwargs or {}))
        if without_values(args, kwargs):
            return func(*args, **kwargs)
        exact = name in _OPERATORS.exact or kwargs.get("rounding_mode") is not None
        # Whole numbers computed from whole numbers are exact, and a program may round them or index with them.
        whole = not exact and all(_is_whole(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
        if name in _OPERATORS.accumulating and not whole:
            args = mapped(self._moved_term, args)
        result = func(*args, **kwargs)
        if name == "_to_copy":
            return self._undefined_varied(args[0], result)
        if not _computes(schema, args):
            return result
        if exact:  # it makes NaNs of other values, or moves those that it is given with their signs
            made = not any(_has_nan(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
            return pytree.tree_map_only(torch.Tensor, self._any_sign, result) if made else result
        if any(returned.alias_info is not None for returned in schema.returns):  # an in-place write
            for written in pytree.tree_leaves(result):
                if isinstance(written, torch.Tensor):
                    written.copy_(self._moved(written, whole=whole))
            return result
        return pytree.tree_map_only(torch.Tensor, functools.partial(self._moved, whole=whole), result)

    def _undefined_varied(self, source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """The result of a cast, with undefined values varied by seed: C++ defines none for a number out of range."""
        if not source.dtype.is_floating_point or result.dtype.is_floating_point or result.dtype.is_complex:
            return result
        if result.dtype is torch.bool or source.layout is not torch.strided:
            return result
        limits = torch.iinfo(result.dtype)
        inside = (source > float(limits.min) - 1) & (source < float(limits.max) + 1)
        if bool(inside.all()):
            return result
        anything = (0, limits.max, limits.min)[self._seed % 3]
        return torch.where(inside.to(result.device), result, torch.full_like(result, anything))

    def _moved_term(self, value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.float64):
            return self._noisy(value)
        return value

    def _moved(self, value: torch.Tensor, *, whole: bool) -> torch.Tensor:
        if not value.dtype.is_floating_point or value.numel() == 0:
            return value
        moved = self._any_sign(self._noisy(value))
        if whole:
            moved = torch.where(_wholes(value), value, moved)
        if moved.stride() == value.stride():
            return moved
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device).copy_(moved)

    def _any_sign(self, value: torch.Tensor) -> torch.Tensor:
        """The values, with NaNs of a sign that varies by seed: IEEE 754 (6.3) gives the sign of a NaN no meaning."""
        if not _has_nan(value):
            return value
        signed = torch.full_like(value, float("nan")).copysign_(torch.tensor(1.0 if self._seed % 2 else -1.0))
        return torch.where(value.isnan(), signed, value)

    def _noisy(self, value: torch.Tensor) -> torch.Tensor:
        wide = value.double() if value.dtype is torch.float64 else value.float()
        draw = torch.randint(
            -1, 2, value.shape, generator=self._generator(value.device), device=value.device, dtype=wide.dtype
        )
        moved = (wide * (1 + torch.finfo(value.dtype).eps * draw)).to(value.dtype)
        return torch.where(torch.isfinite(moved.to(wide.dtype)), moved, value)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _has_nan(value: object) -> bool:
    """Whether a floating tensor of more than 8 bits holds a NaN."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point or value.element_size() == 1:
        return False
    return value.layout is torch.strided and bool(value.isnan().any())


def _is_whole(value: object) -> bool:
    """Whether an argument has no rounding in it: whole numbers, or no floating tensor at all."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return True
    if value.layout is not torch.strided:
        return False
    # The first element alone nearly always settles it.
    return not value.numel() or (bool(_wholes(value[(0,) * value.dim()])) and bool(_wholes(value).all()))


def _wholes(value: torch.Tensor) -> torch.Tensor:
    """Where whole numbers stand; the CPU rounds no float8."""
    wide = value.float() if value.element_size() == 1 else value
    return wide == wide.round()


def _computes(schema: torch.FunctionSchema, args: tuple[object, ...]) -> bool:
    """Whether the operator computes new values from tensors: it is neither a view nor a factory."""
    if any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(args))
