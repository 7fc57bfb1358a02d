"""Evaluation of a loop of Inductor's IR: its body run on tensors of indices, without any code generation.

The IR of a buffer says what a lowering meant; the kernel is what the code generator made of it. Run in the dtype of
the program it has the rounding that the program may have, run in float64 it has none.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from fuzzcompile.compiler.kernels.loop_indices import Indices
from fuzzcompile.compiler.kernels.loop_operators import loop_operator, real, reduce

# Index spaces beyond this are not evaluated: a matrix product written as a loop has the cube of its size.
LARGEST_SPACE = 2**24


class NotEvaluable(Exception):
    """The loop holds an operator that this package does not evaluate, or needs a value that is not known."""


class Memory(Protocol):
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
    memory: Memory,
    symbols: Mapping[object, object],
    *,
    nested: bool = False,
) -> object:
    """Run ``body`` over an index space.

    Args:
        body: takes the indices as sympy expressions: one list, and a second one if there are ``reduced`` dimensions
            (or if ``nested``, always).
        sizes: iteration dimensions.
        reduced: dimensions that a reduction runs over.
        memory: what it loads and stores.
        symbols: values of the sizes that are symbols.
        nested: the body is one of the scheduler's, which takes two lists.

    Returns:
        What the body returns: for the loader of a value, a tensor of shape ``sizes``.

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
    handler = LoopHandler(memory, shape, len(reduced), values)
    split = len(sizes)
    lists = [indices[:split], indices[split:]] if reduced or nested else [indices]
    try:
        with torch.no_grad(), V.set_ops_handler(handler):  # type: ignore[arg-type]
            result = body(*lists)
    except NotEvaluable:
        raise
    except Exception as error:  # lowerings are any code, a user's too, and may raise anything on real tensors
        raise NotEvaluable(f"{type(error).__name__}: {error}"[:200]) from error
    result = plain(result)
    return result.expand(shape) if isinstance(result, torch.Tensor) else result


def plain(value: object) -> object:
    """A value, or a tuple of values, without Inductor's wrapper that gives them arithmetic."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return getattr(value, "value", value) if not isinstance(value, torch.Tensor) else value


class LoopHandler:
    """Answers the operators of a loop body with tensors over the whole index space."""

    def __init__(self, memory: Memory, shape: Sequence[int], reduced: int, values: dict[object, object]) -> None:
        self.memory, self.shape, self.reduced, self.values = memory, list(shape), reduced, values
        self._masked = 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = loop_operator(name)
        if function is None:
            raise NotEvaluable(f"operator {name}")

        def call(*args: object, **kwargs: object) -> object:
            result = function(*(plain(arg) for arg in args), **{key: plain(value) for key, value in kwargs.items()})
            return self._rounded(result)

        return call

    # -- memory ---------------------------------------------------------------------------------

    def load(self, name: str, index: object) -> torch.Tensor:
        """Elements of a buffer; NaN or the largest integer beyond its end, unless the load is masked."""
        flat = self.memory.flat(name)
        wanted = torch.as_tensor(self._index(index))
        place = wanted.clamp(0, max(flat.numel() - 1, 0))
        value = flat[place].to(real(flat.dtype, double=self.memory.double))
        if self._masked or value.dtype is torch.bool or bool((place == wanted).all()):
            return value
        nothing = float("nan") if value.is_floating_point() else torch.iinfo(value.dtype).max
        return torch.where(place == wanted, value, torch.full_like(value, nothing))

    def store(self, name: str, index: object, value: object, mode: str | None = None) -> None:
        """Write elements of a buffer, or (``mode`` ``atomic_add``) add to them."""
        flat = self.memory.flat(name)
        place = torch.as_tensor(self._index(index))
        written = torch.as_tensor(plain(value)).to(flat.dtype)
        shape = torch.broadcast_shapes(place.shape, written.shape, self._outer)  # type: ignore[no-untyped-call]
        place, written = place.expand(shape).reshape(-1), written.expand(shape).reshape(-1)
        if place.numel() and (int(place.min()) < 0 or int(place.max()) >= flat.numel()):
            raise NotEvaluable(f"{name} is written out of bounds")
        flat.index_put_((place,), written, accumulate=mode is not None and "add" in mode)

    def store_reduction(self, name: str, index: object, value: object) -> None:
        """Write what was reduced."""
        self.store(name, index, value)

    @property
    def _outer(self) -> list[int]:
        """The iteration space, reduced dimensions as one element."""
        split = len(self.shape) - self.reduced
        return [*self.shape[:split], *[1] * self.reduced] if self.reduced else self.shape

    # -- indices --------------------------------------------------------------------------------

    def index_expr(self, expression: object, dtype: torch.dtype) -> torch.Tensor:
        """The value of an expression of indices."""
        return torch.as_tensor(self._index(expression)).to(real(dtype, double=self.memory.double))

    value_expr = index_expr

    def indirect_indexing(self, index: object, size: object, check: bool = True, wrap_neg: bool = True) -> object:
        """A symbol for an index that was computed."""
        value = torch.as_tensor(plain(index)).to(torch.int64)
        if wrap_neg:
            value = torch.where(value < 0, value + torch.as_tensor(self._index(size)), value)
        symbol = importlib.import_module("sympy").Symbol(f"fzi{len(self.values)}", integer=True, nonnegative=True)
        self.values[symbol] = value
        return symbol

    def check_bounds(self, *args: object, **kwargs: object) -> None:
        """Loads stay within bounds; whether the kernel checks them is not evaluated."""

    def device_assert_async(self, *args: object, **kwargs: object) -> None:
        """Not evaluated."""

    def _index(self, expression: object) -> object:
        from torch.utils._sympy.interp import sympy_interp

        if isinstance(expression, (int, torch.Tensor)):
            return expression
        result: object = sympy_interp(Indices, self.values, expression)
        return result

    # -- values ---------------------------------------------------------------------------------

    def constant(self, value: object, dtype: torch.dtype) -> torch.Tensor:
        """A number."""
        if not isinstance(value, (bool, int, float)):
            value = self._index(value)
        return torch.as_tensor(value).to(real(dtype, double=self.memory.double))

    def to_dtype(
        self, x: object, dtype: torch.dtype, src_dtype: object = None, use_compute_types: bool = True
    ) -> torch.Tensor:
        """A cast; in float64 none to another floating type is made."""
        value = torch.as_tensor(plain(x))
        if dtype.is_floating_point:
            # A cast to fewer digits that the program writes rounds, unless in float64.
            rounded = value if self.memory.double else value.to(dtype)
            return rounded.to(real(dtype, double=self.memory.double))
        return value != 0 if dtype is torch.bool else value.to(dtype)

    def to_dtype_bitcast(self, x: object, dtype: torch.dtype, src_dtype: torch.dtype) -> torch.Tensor:
        """The bits of a value of ``src_dtype``, read as ``dtype``; a value in float64 has none of that dtype."""
        if self.memory.double and src_dtype.is_floating_point:
            raise NotEvaluable("bits of a rounded value")
        bits = torch.as_tensor(plain(x)).to(src_dtype).view(dtype)
        return bits.to(real(dtype, double=self.memory.double))

    def masked(self, mask: object, body: Callable[[], object], other: object) -> torch.Tensor:
        """Return the value of ``body`` where the mask is set, and ``other`` elsewhere."""
        self._masked += 1
        try:
            value = torch.as_tensor(plain(body()))
        finally:
            self._masked -= 1
        filled = torch.as_tensor(plain(other)).to(value.dtype)
        return torch.where(torch.as_tensor(plain(mask)).bool(), value, filled)

    def bucketize(
        self,
        values: object,
        boundaries: tuple[str, object, object, object],
        boundary_indices: object,
        indexing_dtype: torch.dtype,
        right: bool,
        sorter: object = None,
        sorter_indices: object = None,
    ) -> torch.Tensor:
        """Positions in one sorted row of boundaries."""
        row = self.memory.flat(boundaries[0])
        if sorter is not None or int(torch.as_tensor(self._index(boundaries[1]))) != row.numel():
            raise NotEvaluable("bucketize of rows")
        return torch.bucketize(torch.as_tensor(plain(values)).to(row.dtype), row, right=right).to(indexing_dtype)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: object) -> object:
        """``value`` over the reduced dimensions, which are kept with size 1."""
        value = plain(value)
        dims = range(len(self.shape) - self.reduced, len(self.shape))
        whole = real(src_dtype, double=self.memory.double)
        values = value if isinstance(value, tuple) else (value,)
        values = tuple(torch.as_tensor(part).to(whole).expand(self.shape) for part in values)
        try:
            result = reduce(kind, values, dims)
        except KeyError:
            raise NotEvaluable(f"reduction {kind}") from None
        wanted = real(dtype, double=self.memory.double)
        if isinstance(result, tuple):
            return tuple(part.to(wanted) for part in result)
        return self._rounded(result.to(wanted))

    def scan(self, dtypes: Sequence[torch.dtype], combine: Combine, values: Sequence[object]) -> tuple[object, ...]:
        """Every prefix of the trailing dimensions combined."""
        rows = [self._row(value) for value in values]
        length, step = rows[0].shape[-1], 1
        while step < length:  # prefixes of twice the length in each round
            early, late = [row[..., :-step] for row in rows], [row[..., step:] for row in rows]
            joined = [torch.as_tensor(plain(part)) for part in combine(tuple(early), tuple(late))]
            rows = [torch.cat([row[..., :step], part], -1) for row, part in zip(rows, joined, strict=True)]
            step *= 2
        return tuple(self._rounded(self._unrow(row, dtype)) for row, dtype in zip(rows, dtypes, strict=True))

    def sort(
        self, dtypes: Sequence[torch.dtype], values: Sequence[object], stable: bool, descending: bool
    ) -> tuple[object, ...]:
        """The trailing dimensions in the order of the first value."""
        rows = [self._row(value) for value in values]
        order = rows[0].sort(dim=-1, stable=True, descending=descending).indices
        return tuple(self._unrow(row.gather(-1, order), dtype) for row, dtype in zip(rows, dtypes, strict=True))

    def _row(self, value: object) -> torch.Tensor:
        """A value with the trailing dimensions as one."""
        whole = torch.as_tensor(plain(value)).expand(self.shape)
        return whole.reshape(*self.shape[: len(self.shape) - self.reduced], -1)

    def _unrow(self, row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return row.reshape(self.shape).to(real(dtype, double=self.memory.double))

    def _rounded(self, value: object) -> object:
        """The value moved by up to one ulp where noise was asked for; tuples stay as they are."""
        generator = self.memory.generator
        if generator is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if bool((value == value.round()).all()):  # whole numbers have nothing rounded off
            return value
        draw = torch.randint(-1, 2, value.shape, generator=generator).to(value.dtype)
        moved = value * (1 + torch.finfo(value.dtype).eps * draw)
        return torch.where(torch.isfinite(moved), moved, value)
