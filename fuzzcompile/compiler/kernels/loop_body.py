"""Evaluation of a loop of Inductor's IR: its body run on tensors of indices, without any code generation."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch

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
_LOW = (torch.bfloat16, torch.float16)
_RENAMED = {
    **dict.fromkeys(("truediv", "int_truediv", "div_rn"), "true_divide"),
    "mul_rn": "mul",
    "mod": "fmod",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "xor": "bitwise_xor",
}


def find_loop_operator(name: str) -> Operator | None:
    """The function that computes operator ``name`` of a loop on tensors; None if none is known."""
    if name in _OWN:
        return _OWN[name]
    for place in (torch, torch.special):
        function = getattr(place, _RENAMED.get(name, name), None)
        if callable(function) and not name.startswith("_"):
            return functools.partial(_call_with_tensors, function)
    return None


def find_compute_dtype(dtype: torch.dtype, *, double: bool) -> torch.dtype:
    """The dtype that values of ``dtype`` are computed in: bfloat16 and float16 are computed in float32."""
    if not dtype.is_floating_point:
        return dtype
    if double:
        return torch.float64
    return torch.float32 if dtype in _LOW else dtype


def _call_with_tensors(function: Operator, *args: object, **kwargs: object) -> object:
    return function(*(torch.as_tensor(arg) if isinstance(arg, (bool, int, float)) else arg for arg in args), **kwargs)


def _where(condition: torch.Tensor, then: object, otherwise: object) -> torch.Tensor:
    return torch.where(condition.bool(), torch.as_tensor(then), torch.as_tensor(otherwise))


def _round_by(rounded: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    return lambda x, dtype: rounded(x).to(dtype)


_OWN: dict[str, Operator] = {
    "identity": lambda x: x,
    "floordiv": functools.partial(torch.div, rounding_mode="floor"),
    "truncdiv": functools.partial(torch.div, rounding_mode="trunc"),
    "where": _where,
    "sigmoid": torch.sigmoid,
    "fma": lambda x, y, z: x * y + z,
    "libdevice_exp": torch.exp,
    "not_": torch.logical_not,
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    **{f"{name}_to_int": _round_by(getattr(torch, name)) for name in ("trunc", "floor", "ceil", "round")},
    "modified_bessel_i0": torch.special.i0,
    "modified_bessel_i1": torch.special.i1,
    "igamma": torch.special.gammainc,
    "igammac": torch.special.gammaincc,
    "polygamma": lambda n, x: torch.polygamma(int(n.reshape(-1)[0]), x),
    "frexp": lambda x: (torch.frexp(x).mantissa, torch.frexp(x).exponent),
}


# -- reductions -------------------------------------------------------------------------------------


def _extreme(function: Callable[..., torch.Tensor], value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    if value.dtype is torch.bool:
        return _extreme(function, value.to(torch.uint8), dims).bool()
    return function(value, dim=dims, keepdim=True)


def _compute_position(function: Callable[..., torch.Tensor], value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    flat = _flatten_dims(value, dims)
    flat = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    # The first of equal ones, as the loops have it; torch promises none.
    best = function(flat, dim=-1, keepdim=True)
    hits = (flat == best) | ((flat != flat) & (best != best))
    first: torch.Tensor = hits.to(torch.uint8).argmax(-1)
    return first.reshape(_list_kept_sizes(value, dims))


def _reduce_flat(
    function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, dims: list[int]
) -> torch.Tensor:
    return function(_flatten_dims(value, dims)).reshape(_list_kept_sizes(value, dims))


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
    "argmax": functools.partial(_compute_position, torch.amax),
    "argmin": functools.partial(_compute_position, torch.amin),
    "xor_sum": functools.partial(_reduce_flat, lambda flat: functools.reduce(operator.xor, flat.unbind(-1))),
    "welford_reduce": _welford_reduce,
    "online_softmax_reduce": _online_softmax,
}


def _list_kept_sizes(value: torch.Tensor, dims: list[int]) -> list[int]:
    return [1 if dim in dims else size for dim, size in enumerate(value.shape)]


def _flatten_dims(value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return value.reshape(*value.shape[: len(value.shape) - len(dims)], -1)


# Index spaces beyond this are not evaluated: a matrix product written as a loop has the cube of its size.
LARGEST_SPACE = 2**24


class NotEvaluable(Exception):
    """The loop holds an operator that this package does not evaluate, or needs a value that is not known."""


class LoopMemory(Protocol):
    """Memory that loops load from and store to: flat storages, by the name of the buffer."""

    double: bool
    generator: torch.Generator | None

    def flat(self, name: str) -> torch.Tensor:
        """The elements of the storage behind buffer ``name``, in a row."""
        ...


Body = Callable[..., object]
Combine = Callable[[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], Sequence[object]]


def run_loop(
    body: Body,
    sizes: Sequence[int],
    reduced: Sequence[int],
    memory: LoopMemory,
    symbols: Mapping[object, object],
    *,
    nested: bool = False,
) -> object:
    """Run ``body`` over an index space of ``sizes``, and of the dimensions that a reduction runs over; what it returns.

    It takes the indices as sympy expressions: one list, and a second one if there are ``reduced`` dimensions, or always
    if it is ``nested``, as one of the scheduler's. ``symbols`` are values of the sizes that are symbols.

    Raises:
        NotEvaluable: for anything that cannot be evaluated.
    """
    from torch._inductor.virtualized import V

    shape = [*sizes, *reduced]
    if math.prod(shape) > LARGEST_SPACE:
        raise NotEvaluable(f"{math.prod(shape)} elements")
    sympy = importlib.import_module("sympy")  # which has no types
    indices: list[object] = []
    values: dict[object, object] = dict(symbols)
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
        raise NotEvaluable(f"{type(error).__name__}: {error}"[:200]) from error
    result = unwrap_value(result)
    return result.expand(shape) if isinstance(result, torch.Tensor) else result


def unwrap_value(value: object) -> object:
    """A value, or a tuple of values, without Inductor's wrapper that gives them arithmetic."""
    if isinstance(value, tuple):
        return tuple(unwrap_value(item) for item in value)
    return getattr(value, "value", value) if not isinstance(value, torch.Tensor) else value


class _LoopHandler:
    """Answers the operators of a loop body with tensors over the whole index space."""

    def __init__(self, memory: LoopMemory, shape: Sequence[int], reduced: int, values: dict[object, object]) -> None:
        self.memory, self.shape, self.reduced, self.values = memory, list(shape), reduced, values
        self._masked = 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = find_loop_operator(name)
        if function is None:
            raise NotEvaluable(f"operator {name}")

        def call(*args: object, **kwargs: object) -> object:
            result = function(
                *(unwrap_value(arg) for arg in args), **{key: unwrap_value(value) for key, value in kwargs.items()}
            )
            return self._add_noise(result)

        return call

    # -- memory ---------------------------------------------------------------------------------

    def load(self, name: str, index: object) -> torch.Tensor:
        """Elements of a buffer; NaN or the largest integer beyond its end, unless the load is masked."""
        flat = self.memory.flat(name)
        wanted = torch.as_tensor(self._evaluate_index(index))
        place = wanted.clamp(0, max(flat.numel() - 1, 0))
        value = flat[place].to(find_compute_dtype(flat.dtype, double=self.memory.double))
        if self._masked or value.dtype is torch.bool or bool((place == wanted).all()):
            return value
        nothing = float("nan") if value.is_floating_point() else torch.iinfo(value.dtype).max
        return torch.where(place == wanted, value, torch.full_like(value, nothing))

    def store(self, name: str, index: object, value: object, mode: str | None = None) -> None:
        """Write elements of a buffer, or (``mode`` ``atomic_add``) add to them."""
        flat = self.memory.flat(name)
        place = torch.as_tensor(self._evaluate_index(index))
        written = torch.as_tensor(unwrap_value(value)).to(flat.dtype)
        shape = torch.broadcast_shapes(place.shape, written.shape, self._outer)  # type: ignore[no-untyped-call]
        place, written = place.expand(shape).reshape(-1), written.expand(shape).reshape(-1)
        if place.numel() and (int(place.min()) < 0 or int(place.max()) >= flat.numel()):
            raise NotEvaluable(f"{name} is written out of bounds")
        flat.index_put_((place,), written, accumulate=mode is not None and "add" in mode)

    def store_reduction(self, name: str, index: object, value: object) -> None:
        self.store(name, index, value)

    @property
    def _outer(self) -> list[int]:
        split = len(self.shape) - self.reduced
        return [*self.shape[:split], *[1] * self.reduced] if self.reduced else self.shape

    # -- indices --------------------------------------------------------------------------------

    def index_expr(self, expression: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(self._evaluate_index(expression)).to(
            find_compute_dtype(dtype, double=self.memory.double)
        )

    value_expr = index_expr

    def indirect_indexing(self, index: object, size: object, check: bool = True, wrap_neg: bool = True) -> object:
        """A symbol for an index that was computed."""
        value = torch.as_tensor(unwrap_value(index)).to(torch.int64)
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
        return torch.as_tensor(value).to(find_compute_dtype(dtype, double=self.memory.double))

    def to_dtype(
        self, x: object, dtype: torch.dtype, src_dtype: object = None, use_compute_types: bool = True
    ) -> torch.Tensor:
        """A cast; in float64 none to another floating type is made."""
        value = torch.as_tensor(unwrap_value(x))
        if dtype.is_floating_point:
            # A cast to fewer digits that the program writes rounds, unless in float64.
            rounded = value if self.memory.double else value.to(dtype)
            return rounded.to(find_compute_dtype(dtype, double=self.memory.double))
        return value != 0 if dtype is torch.bool else value.to(dtype)

    def to_dtype_bitcast(self, x: object, dtype: torch.dtype, src_dtype: torch.dtype) -> torch.Tensor:
        """The bits of a value of ``src_dtype``, read as ``dtype``; a value in float64 has none of that dtype."""
        if self.memory.double and src_dtype.is_floating_point:
            raise NotEvaluable("bits of a rounded value")
        bits = torch.as_tensor(unwrap_value(x)).to(src_dtype).view(dtype)
        return bits.to(find_compute_dtype(dtype, double=self.memory.double))

    def masked(self, mask: object, body: Callable[[], object], other: object) -> torch.Tensor:
        self._masked += 1
        try:
            value = torch.as_tensor(unwrap_value(body()))
        finally:
            self._masked -= 1
        filled = torch.as_tensor(unwrap_value(other)).to(value.dtype)
        return torch.where(torch.as_tensor(unwrap_value(mask)).bool(), value, filled)

    def bucketize(
        self, values: object, boundaries: Sequence[Any], at: object, dtype: torch.dtype, right: bool, *sorter: Any
    ) -> torch.Tensor:
        """Positions in one sorted row of boundaries."""
        row, size = self.memory.flat(boundaries[0]), int(torch.as_tensor(self._evaluate_index(boundaries[1])))
        if size != row.numel() or any(each is not None for each in sorter):
            raise NotEvaluable("bucketize of rows")
        return torch.bucketize(torch.as_tensor(unwrap_value(values)).to(row.dtype), row, right=right).to(dtype)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: object) -> object:
        value = unwrap_value(value)
        dims = list(range(len(self.shape) - self.reduced, len(self.shape)))
        whole = find_compute_dtype(src_dtype, double=self.memory.double)
        values = value if isinstance(value, tuple) else (value,)
        values = tuple(torch.as_tensor(part).to(whole).expand(self.shape) for part in values)
        if kind not in (*_REDUCTIONS, "welford_combine"):
            raise NotEvaluable(f"reduction {kind}")
        # Mean, squares and weights are combined; any other kind reduces one tensor. Dimensions are kept with size 1.
        result = _welford_combine(values, dims) if kind == "welford_combine" else _REDUCTIONS[kind](values[0], dims)
        wanted = find_compute_dtype(dtype, double=self.memory.double)
        if isinstance(result, tuple):
            return tuple(part.to(wanted) for part in result)
        return self._add_noise(result.to(wanted))

    def scan(self, dtypes: Sequence[torch.dtype], combine: Combine, values: Sequence[object]) -> tuple[object, ...]:
        """Every prefix of the trailing dimensions combined."""
        rows = [self._flatten_row(value) for value in values]
        length, step = rows[0].shape[-1], 1
        while step < length:  # prefixes of twice the length in each round
            early, late = [row[..., :-step] for row in rows], [row[..., step:] for row in rows]
            joined = [torch.as_tensor(unwrap_value(part)) for part in combine(tuple(early), tuple(late))]
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
        whole = torch.as_tensor(unwrap_value(value)).expand(self.shape)
        return whole.reshape(*self.shape[: len(self.shape) - self.reduced], -1)

    def _restore_shape(self, row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return row.reshape(self.shape).to(find_compute_dtype(dtype, double=self.memory.double))

    def _add_noise(self, value: object) -> object:
        generator = self.memory.generator
        if generator is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if bool((value == value.round()).all()):  # whole numbers have nothing rounded off
            return value
        draw = torch.randint(-1, 2, value.shape, generator=generator).to(value.dtype)
        moved = value * (1 + torch.finfo(value.dtype).eps * draw)
        return torch.where(torch.isfinite(moved), moved, value)
