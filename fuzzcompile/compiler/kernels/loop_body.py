"""Evaluation of a loop of Inductor's IR: its body run on tensors of indices, without any code generation."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from fuzzcompile.model.errors import describe_error

# Arithmetic of the index expressions of Inductor's loops.


def _convert(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, which takes numbers as well as tensors; a dtype behind them is what its result has."""

    def call(*values: object) -> torch.Tensor:
        dtypes = [value for value in values if isinstance(value, torch.dtype)]
        result = function(*(torch.as_tensor(value) for value in values if not isinstance(value, torch.dtype)))
        return result.to(dtypes[0]) if dtypes else result

    return call


IndexOperators = SimpleNamespace(
    constant=lambda value, dtype: float(value) if dtype is torch.double else int(value),
    modular_indexing=lambda a, divisor, modulus: (a // divisor) % modulus,
    identity=lambda a: a,
    sym_sum=sum,
    **{name: getattr(operator, name) for name in ("add", "mul", "sub", "floordiv", "truediv", "mod", "abs")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")},
    int_truediv=operator.truediv,
    python_mod=operator.mod,
    pow=operator.pow,
    pow_by_natural=operator.pow,
    not_=_convert(torch.logical_not),
    where=_convert(torch.where),
    minimum=_convert(torch.minimum),
    maximum=_convert(torch.maximum),
    to_dtype=_convert(lambda value: value),
    **{f"{name}_to_int": _convert(getattr(torch, name)) for name in ("trunc", "floor", "ceil", "round")},
)
"""Index expressions on integers and on tensors of them, for torch's interpreter of sympy expressions."""


# Operators of Inductor's loops in terms of torch's own operators on whole tensors.

Operator = Callable[..., object]
Reduced = torch.Tensor | tuple[torch.Tensor, ...]
_RENAMED = {
    **dict.fromkeys(("truediv", "int_truediv", "div_rn"), "true_divide"),
    "mul_rn": "mul",
    "mod": "fmod",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "xor": "bitwise_xor",
    "libdevice_exp": "exp",
    "not_": "logical_not",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "modified_bessel_i0": "i0",
    "modified_bessel_i1": "i1",
    "igamma": "gammainc",
    "igammac": "gammaincc",
}
_OWN: dict[str, Operator] = {
    "identity": lambda x: x,
    "floordiv": functools.partial(torch.div, rounding_mode="floor"),
    "truncdiv": functools.partial(torch.div, rounding_mode="trunc"),
    "where": lambda condition, then, otherwise: torch.where(condition.bool(), *map(torch.as_tensor, (then, otherwise))),
    "fma": lambda x, y, z: x * y + z,
    **{f"{name}_to_int": _convert(getattr(torch, name)) for name in ("trunc", "floor", "ceil", "round")},
    "polygamma": lambda n, x: torch.polygamma(int(n.reshape(-1)[0]), x),
    "frexp": lambda x: tuple(torch.frexp(x)),
}


def find_compute_dtype(dtype: torch.dtype, *, double: bool) -> torch.dtype:
    """The dtype that values of ``dtype`` are computed in: bfloat16 and float16 are computed in float32."""
    if not dtype.is_floating_point:
        return dtype
    if double:
        return torch.float64
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


# Reductions of the trailing dimensions, which are kept with size 1.


def _extreme(function: Callable[..., torch.Tensor], value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    plain = value.to(torch.uint8) if value.dtype is torch.bool else value
    return function(plain, dim=dims, keepdim=True).to(value.dtype)


def _find_position(function: Callable[..., torch.Tensor], flat: torch.Tensor) -> torch.Tensor:
    # The first of equal ones, as the loops have it; torch promises none.
    best = _extreme(function, flat, [-1])
    return ((flat == best) | ((flat != flat) & (best != best))).to(torch.uint8).argmax(-1)


def _reduce_flat(
    function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, dims: list[int]
) -> torch.Tensor:
    kept = value.shape[: value.dim() - len(dims)]
    return function(value.reshape(*kept, -1)).reshape(*kept, *[1] * len(dims))


def _welford_reduce(value: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, ...]:
    mean = value.mean(dims, keepdim=True)
    count = math.prod(value.shape[dim] for dim in dims)
    return mean, ((value - mean) ** 2).sum(dims, keepdim=True), torch.full_like(mean, count)


def _welford_combine(value: Sequence[torch.Tensor], dims: list[int]) -> tuple[torch.Tensor, ...]:
    means, squares, weights = torch.broadcast_tensors(*value)  # type: ignore[no-untyped-call]
    weight = weights.sum(dims, keepdim=True)
    mean = (means * weights).sum(dims, keepdim=True) / torch.where(weight == 0, torch.ones_like(weight), weight)
    return mean, (squares + weights * (means - mean) ** 2).sum(dims, keepdim=True), weight


def _online_softmax(value: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, ...]:
    largest = value.amax(dims, keepdim=True)
    return largest, torch.exp(value - largest).sum(dims, keepdim=True)


def _sum(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return value.sum(dims, keepdim=True, dtype=value.dtype if value.dtype is not torch.bool else None)


_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int]], Reduced]] = {
    "sum": _sum,
    "dot": _sum,
    "prod": functools.partial(_reduce_flat, lambda flat: flat.prod(-1, dtype=flat.dtype)),
    "any": lambda value, dims: value.bool().any(dim=tuple(dims), keepdim=True),
    "max": functools.partial(_extreme, torch.amax),
    "min": functools.partial(_extreme, torch.amin),
    "argmax": functools.partial(_reduce_flat, functools.partial(_find_position, torch.amax)),
    "argmin": functools.partial(_reduce_flat, functools.partial(_find_position, torch.amin)),
    "xor_sum": functools.partial(_reduce_flat, lambda flat: functools.reduce(operator.xor, flat.unbind(-1))),
    "welford_reduce": _welford_reduce,
    "online_softmax_reduce": _online_softmax,
}


# Index spaces beyond this are not evaluated: a matrix product written as a loop has the cube of its size.
LARGEST_SPACE = 2**24


class NotEvaluable(Exception):
    """The loop holds an operator that this package does not evaluate, or needs a value that is not known."""


class LoopMemory(Protocol):
    """Memory that loops load from and store to; ``symbols`` are the sizes that their bounds name."""

    double: bool
    generator: torch.Generator | None
    symbols: dict[object, object]

    def flat(self, name: str) -> torch.Tensor:
        """The elements of the storage behind buffer ``name``, in a row."""
        ...


Body = Callable[..., object]
Combine = Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], Sequence[object]]


def run_loop(
    body: Body, sizes: Sequence[int], reduced: Sequence[int], memory: LoopMemory, *, nested: bool = False
) -> object:
    """Run ``body`` over an index space of ``sizes``, and of the dimensions that a reduction runs over; what it returns.

    It takes the indices as sympy expressions: one list, and a second one if there are ``reduced`` dimensions, or always
    if it is ``nested``, as one of the scheduler's. NotEvaluable is raised for anything that cannot be evaluated.
    """
    from torch._inductor.virtualized import V

    shape = [*sizes, *reduced]
    if math.prod(shape) > LARGEST_SPACE:
        raise NotEvaluable(f"{math.prod(shape)} elements")
    sympy = importlib.import_module("sympy")  # which has no types
    indices: list[object] = []
    values = dict(memory.symbols)
    for dimension, size in enumerate(shape):
        if size == 1:  # as Inductor writes it: an index that is always 0
            indices.append(sympy.Integer(0))
            continue
        symbol = sympy.Symbol(f"fz{dimension}", integer=True, nonnegative=True)
        view = [1] * len(shape)
        view[dimension] = size
        values[symbol] = torch.arange(size).view(view)
        indices.append(symbol)
    handler = _LoopHandler(memory, shape, len(reduced), values)
    split = len(sizes)
    lists = [indices[:split], indices[split:]] if reduced or nested else [indices]
    try:
        with torch.no_grad(), V.set_ops_handler(handler):  # type: ignore[arg-type]
            result = body(*lists)
    except NotEvaluable:
        raise
    except Exception as error:  # lowerings are any code, a user's too, and may raise anything on real tensors
        raise NotEvaluable(describe_error(error, 200)) from error
    result = _unwrap(result)
    return result.expand(shape) if isinstance(result, torch.Tensor) else result


def _unwrap(value: object) -> object:
    """A value, or a tuple of values, without Inductor's wrapper that gives them arithmetic."""
    if isinstance(value, tuple):
        return tuple(map(_unwrap, value))
    return getattr(value, "value", value) if not isinstance(value, torch.Tensor) else value


def _as_tensor(value: object) -> torch.Tensor:
    return torch.as_tensor(_unwrap(value))


class _LoopHandler:
    def __init__(self, memory: LoopMemory, shape: Sequence[int], reduced: int, values: dict[object, object]) -> None:
        self.memory, self.shape, self.reduced, self.values = memory, shape, reduced, values
        self._masked = 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("_"):
            raise AttributeError(name)
        places = (getattr(place, _RENAMED.get(name, name), None) for place in (torch, torch.special))
        function: Operator | None = _OWN.get(name) or next(filter(callable, places), None)
        if function is None:
            raise NotEvaluable(f"operator {name}")

        def call(*args: object, **kwargs: object) -> object:
            plain = map(_unwrap, args)
            values = [torch.as_tensor(each) if isinstance(each, (bool, int, float)) else each for each in plain]
            return self._add_noise(function(*values, **{key: _unwrap(value) for key, value in kwargs.items()}))

        return call

    def _convert_to(self, dtype: torch.dtype, value: object) -> torch.Tensor:
        return torch.as_tensor(value).to(find_compute_dtype(dtype, double=self.memory.double))

    # -- memory ---------------------------------------------------------------------------------

    def load(self, name: str, index: object) -> torch.Tensor:
        """Elements of a buffer; NaN or the largest integer beyond its end, unless the load is masked."""
        flat = self.memory.flat(name)
        wanted = torch.as_tensor(self._evaluate_index(index))
        place = wanted.clamp(0, max(flat.numel() - 1, 0))
        value = self._convert_to(flat.dtype, flat[place])
        if self._masked or value.dtype is torch.bool or bool((place == wanted).all()):
            return value
        nothing = float("nan") if value.is_floating_point() else torch.iinfo(value.dtype).max
        return torch.where(place == wanted, value, torch.full_like(value, nothing))

    def store(self, name: str, index: object, value: object, mode: str | None = None) -> None:
        flat = self.memory.flat(name)
        place = torch.as_tensor(self._evaluate_index(index))
        written = _as_tensor(value).to(flat.dtype)
        outer = [*self.shape[: len(self.shape) - self.reduced], *[1] * self.reduced]
        shape = torch.broadcast_shapes(place.shape, written.shape, outer)  # type: ignore[no-untyped-call]
        place, written = place.expand(shape).reshape(-1), written.expand(shape).reshape(-1)
        if place.numel() and (int(place.min()) < 0 or int(place.max()) >= flat.numel()):
            raise NotEvaluable(f"{name} is written out of bounds")
        flat.index_put_((place,), written, accumulate=mode is not None and "add" in mode)

    store_reduction = store

    # -- indices --------------------------------------------------------------------------------

    def index_expr(self, expression: object, dtype: torch.dtype) -> torch.Tensor:
        return self._convert_to(dtype, self._evaluate_index(expression))

    value_expr = index_expr

    def indirect_indexing(self, index: object, size: object, check: bool = True, wrap_neg: bool = True) -> object:
        value = _as_tensor(index).to(torch.int64)
        if wrap_neg:
            value = torch.where(value < 0, value + torch.as_tensor(self._evaluate_index(size)), value)
        symbol = importlib.import_module("sympy").Symbol(f"fzi{len(self.values)}", integer=True, nonnegative=True)
        self.values[symbol] = value
        return symbol

    def check_bounds(self, *args: object, **kwargs: object) -> None:
        """Loads stay within bounds; whether the kernel checks them is not evaluated."""

    device_assert_async = check_bounds

    def _evaluate_index(self, expression: object) -> object:
        from torch.utils._sympy.interp import sympy_interp

        if isinstance(expression, (int, torch.Tensor)):
            return expression
        result: object = sympy_interp(IndexOperators, self.values, expression)
        return result

    # -- values ---------------------------------------------------------------------------------

    def constant(self, value: object, dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(value, (bool, int, float)):
            value = self._evaluate_index(value)
        return self._convert_to(dtype, value)

    def to_dtype(
        self, x: object, dtype: torch.dtype, src_dtype: object = None, use_compute_types: bool = True
    ) -> torch.Tensor:
        value = _as_tensor(x)
        if dtype.is_floating_point:
            # A cast to fewer digits that the program writes rounds, unless in float64.
            return self._convert_to(dtype, value if self.memory.double else value.to(dtype))
        return value != 0 if dtype is torch.bool else value.to(dtype)

    def to_dtype_bitcast(self, x: object, dtype: torch.dtype, src_dtype: torch.dtype) -> torch.Tensor:
        """The bits of a value of ``src_dtype``, read as ``dtype``; a value in float64 has none of that dtype."""
        if self.memory.double and src_dtype.is_floating_point:
            raise NotEvaluable("bits of a rounded value")
        return self._convert_to(dtype, _as_tensor(x).to(src_dtype).view(dtype))

    def masked(self, mask: object, body: Callable[[], object], other: object) -> torch.Tensor:
        self._masked += 1
        try:
            value = _as_tensor(body())
        finally:
            self._masked -= 1
        filled = _as_tensor(other).to(value.dtype)
        return torch.where(_as_tensor(mask).bool(), value, filled)

    def bucketize(
        self, values: object, boundaries: Sequence[Any], at: object, dtype: torch.dtype, right: bool, *sorter: Any
    ) -> torch.Tensor:
        row, size = self.memory.flat(boundaries[0]), int(torch.as_tensor(self._evaluate_index(boundaries[1])))
        if size != row.numel() or any(each is not None for each in sorter):
            raise NotEvaluable("bucketize of rows")
        return torch.bucketize(_as_tensor(values).to(row.dtype), row, right=right).to(dtype)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: object) -> object:
        dims = list(range(len(self.shape) - self.reduced, len(self.shape)))
        given = value if isinstance(value, tuple) else (value,)
        values = [self._convert_to(src_dtype, _unwrap(part)).expand(self.shape) for part in given]
        if kind == "welford_combine":  # mean, squares and weights; any other kind reduces one tensor
            result: Reduced = _welford_combine(values, dims)
        elif kind in _REDUCTIONS:
            result = _REDUCTIONS[kind](values[0], dims)
        else:
            raise NotEvaluable(f"reduction {kind}")
        if isinstance(result, tuple):
            return tuple(self._convert_to(dtype, part) for part in result)
        return self._add_noise(self._convert_to(dtype, result))

    def scan(self, dtypes: Sequence[torch.dtype], combine: Combine, values: Sequence[object]) -> tuple[object, ...]:
        rows = [self._flatten_row(value) for value in values]
        length, step = rows[0].shape[-1], 1
        while step < length:  # prefixes of twice the length in each round
            early, late = [row[..., :-step] for row in rows], [row[..., step:] for row in rows]
            joined = [_as_tensor(part) for part in combine(tuple(early), tuple(late))]
            rows = [torch.cat([row[..., :step], part], -1) for row, part in zip(rows, joined, strict=True)]
            step *= 2
        return tuple(self._add_noise(self._restore_shape(row, dtype)) for row, dtype in zip(rows, dtypes, strict=True))

    def sort(
        self, dtypes: Sequence[torch.dtype], values: Sequence[object], stable: bool, descending: bool
    ) -> tuple[object, ...]:
        rows = [self._flatten_row(value) for value in values]
        order = rows[0].sort(dim=-1, stable=True, descending=descending).indices
        return tuple(self._restore_shape(row.gather(-1, order), dtype) for row, dtype in zip(rows, dtypes, strict=True))

    def _flatten_row(self, value: object) -> torch.Tensor:
        whole = _as_tensor(value).expand(self.shape)
        return whole.reshape(*self.shape[: len(self.shape) - self.reduced], -1)

    def _restore_shape(self, row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._convert_to(dtype, row.reshape(self.shape))

    def _add_noise(self, value: object) -> object:
        generator = self.memory.generator
        if generator is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if bool((value == value.round()).all()):  # whole numbers have nothing rounded off
            return value
        draw = torch.randint(-1, 2, value.shape, generator=generator).to(value.dtype)
        moved = value * (1 + torch.finfo(value.dtype).eps * draw)
        return torch.where(torch.isfinite(moved), moved, value)
