"""What a loop of Inductor's IR computes: its body run on tensors of indices, without any code generation.

The IR of a buffer says what a lowering meant; the kernel is what the code generator made of it. Run in the dtype of
the program it has the rounding that the program may have, run in float64 it has none.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from fuzzcompile.compiler.kernels.loop_indices import Indices
from fuzzcompile.compiler.kernels.loop_operators import loop_operator, real, reduce

# Index spaces beyond this are not evaluated: a matrix product written as a loop has the cube of its size.
LARGEST_SPACE = 2**24


class NotEvaluable(Exception):
    """The loop holds something that is not known here, or needs a value that is not there."""


class Memory(Protocol):
    """Where loops load from and store to: flat storages, by the name of the buffer."""

    double: bool
    generator: torch.Generator | None

    def flat(self, name: str) -> torch.Tensor:
        """The elements of the storage behind buffer ``name``, in a row."""
        ...


Body = Callable[..., Any]


def run_loop(
    body: Body,
    sizes: Sequence[int],
    reduced: Sequence[int],
    memory: Memory,
    symbols: Mapping[Any, Any],
    *,
    nested: bool = False,
) -> Any:
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
        NotEvaluable: for anything that this cannot follow.
    """
    from torch._inductor.virtualized import V

    shape = [*sizes, *reduced]
    if math.prod(shape) > LARGEST_SPACE:
        raise NotEvaluable(f"{math.prod(shape)} elements")
    indices: list[Any] = []
    values: dict[Any, Any] = dict(symbols)
    for dimension, size in enumerate(shape):
        if size == 1:  # as Inductor writes it: an index that is always 0
            indices.append(_sympy().Integer(0))
            continue
        symbol = _sympy().Symbol(f"fz{dimension}", integer=True, nonnegative=True)
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
    except Exception as error:
        raise NotEvaluable(f"{type(error).__name__}: {error}"[:200]) from error
    result = plain(result)
    return result.expand(shape) if isinstance(result, torch.Tensor) else result


def _sympy() -> Any:
    return importlib.import_module("sympy")  # which has no types


def plain(value: Any) -> Any:
    """Without Inductor's wrapper that gives values arithmetic."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return getattr(value, "value", value) if not isinstance(value, torch.Tensor) else value


class LoopHandler:
    """Answers the operators of a loop body with tensors over the whole index space."""

    def __init__(self, memory: Memory, shape: Sequence[int], reduced: int, values: dict[Any, Any]) -> None:
        self.memory, self.shape, self.reduced, self.values = memory, list(shape), reduced, values
        self._masked = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = loop_operator(name)
        if function is None:
            raise NotEvaluable(f"operator {name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*(plain(arg) for arg in args), **{key: plain(value) for key, value in kwargs.items()})
            return self._rounded(result)

        return call

    # -- memory ---------------------------------------------------------------------------------

    def load(self, name: str, index: Any) -> torch.Tensor:
        """Elements of a buffer; beyond its end there is NaN, or the largest integer, unless that is masked."""
        flat = self.memory.flat(name)
        wanted = torch.as_tensor(self._index(index))
        place = wanted.clamp(0, max(flat.numel() - 1, 0))
        value = flat[place].to(real(flat.dtype, double=self.memory.double))
        if self._masked or value.dtype is torch.bool or bool((place == wanted).all()):
            return value
        nothing = float("nan") if value.is_floating_point() else torch.iinfo(value.dtype).max
        return torch.where(place == wanted, value, torch.full_like(value, nothing))

    def store(self, name: str, index: Any, value: Any, mode: str | None = None) -> None:
        """Write elements of a buffer, or (``mode`` ``atomic_add``) add to them."""
        flat = self.memory.flat(name)
        place = torch.as_tensor(self._index(index))
        written = torch.as_tensor(plain(value)).to(flat.dtype)
        shape = torch.broadcast_shapes(place.shape, written.shape, self._outer)  # type: ignore[no-untyped-call]
        place, written = place.expand(shape).reshape(-1), written.expand(shape).reshape(-1)
        if place.numel() and (int(place.min()) < 0 or int(place.max()) >= flat.numel()):
            raise NotEvaluable(f"{name} is written out of bounds")
        flat.index_put_((place,), written, accumulate=mode is not None and "add" in mode)

    def store_reduction(self, name: str, index: Any, value: Any) -> None:
        """Write what was reduced."""
        self.store(name, index, value)

    @property
    def _outer(self) -> list[int]:
        """The iteration space, reduced dimensions as one element."""
        split = len(self.shape) - self.reduced
        return [*self.shape[:split], *[1] * self.reduced] if self.reduced else self.shape

    # -- indices --------------------------------------------------------------------------------

    def index_expr(self, expression: Any, dtype: torch.dtype) -> torch.Tensor:
        """The value of an expression of indices."""
        return torch.as_tensor(self._index(expression)).to(real(dtype, double=self.memory.double))

    value_expr = index_expr

    def indirect_indexing(self, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        """A symbol for an index that was computed."""
        value = torch.as_tensor(plain(index)).to(torch.int64)
        if wrap_neg:
            value = torch.where(value < 0, value + self._index(size), value)
        symbol = _sympy().Symbol(f"fzi{len(self.values)}", integer=True, nonnegative=True)
        self.values[symbol] = value
        return symbol

    def check_bounds(self, *args: Any, **kwargs: Any) -> None:
        """Loads are kept within bounds here; whether the kernel checks is another matter."""

    def device_assert_async(self, *args: Any, **kwargs: Any) -> None:
        """Not followed."""

    def _index(self, expression: Any) -> Any:
        from torch.utils._sympy.interp import sympy_interp

        if isinstance(expression, (int, torch.Tensor)):
            return expression
        return sympy_interp(Indices, self.values, expression)

    # -- values ---------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        """A number."""
        if not isinstance(value, (bool, int, float)):
            value = self._index(value)
        return torch.as_tensor(value).to(real(dtype, double=self.memory.double))

    def to_dtype(self, x: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True) -> Any:
        """A cast; in float64 none to another floating type is made."""
        x = torch.as_tensor(plain(x))
        if dtype.is_floating_point:
            # A cast to fewer digits that the program writes rounds, unless in float64.
            rounded = x if self.memory.double else x.to(dtype)
            return rounded.to(real(dtype, double=self.memory.double))
        return x != 0 if dtype is torch.bool else x.to(dtype)

    def to_dtype_bitcast(self, x: object, dtype: torch.dtype, src_dtype: torch.dtype) -> torch.Tensor:
        """The bits of a value of ``src_dtype``, read as ``dtype``; a value in float64 has none of that dtype."""
        if self.memory.double and src_dtype.is_floating_point:
            raise NotEvaluable("bits of a rounded value")
        bits = torch.as_tensor(plain(x)).to(src_dtype).view(dtype)
        return bits.to(real(dtype, double=self.memory.double))

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> torch.Tensor:
        """What ``body`` gives where the mask is set, and ``other`` elsewhere."""
        self._masked += 1
        try:
            value = torch.as_tensor(plain(body()))
        finally:
            self._masked -= 1
        mask = torch.as_tensor(plain(mask)).bool()
        filled = torch.as_tensor(plain(other)).to(value.dtype)
        return torch.where(mask, value, filled)

    def bucketize(
        self,
        values: Any,
        boundaries: Any,
        boundary_indices: Any,
        indexing_dtype: torch.dtype,
        right: bool,
        sorter: Any = None,
        sorter_indices: Any = None,
    ) -> torch.Tensor:
        """Positions in one sorted row of boundaries."""
        if sorter is not None or int(self._index(boundaries[1])) != self.memory.flat(boundaries[0]).numel():
            raise NotEvaluable("bucketize of rows")
        row = self.memory.flat(boundaries[0])
        return torch.bucketize(plain(values).to(row.dtype), row, right=right).to(indexing_dtype)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        """``value`` over the reduced dimensions, which are kept with size 1."""
        value = plain(value)
        dims = range(len(self.shape) - self.reduced, len(self.shape))
        whole = real(src_dtype, double=self.memory.double)
        values = value if isinstance(value, tuple) else (value,)
        values = tuple(torch.as_tensor(one).to(whole).expand(self.shape) for one in values)
        try:
            result = reduce(kind, values if isinstance(value, tuple) else values[0], dims)
        except KeyError:
            raise NotEvaluable(f"reduction {kind}") from None
        wanted = real(dtype, double=self.memory.double)
        result = tuple(one.to(wanted) for one in result) if isinstance(result, tuple) else result.to(wanted)
        return self._rounded(result)

    def _rounded(self, value: Any) -> Any:
        """The value moved by up to one ulp, where that is asked for."""
        generator = self.memory.generator
        if generator is None or isinstance(value, tuple):
            return value
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if bool((value == value.round()).all()):  # whole numbers have nothing rounded off
            return value
        draw = torch.randint(-1, 2, value.shape, generator=generator).to(value.dtype)
        moved = value * (1 + torch.finfo(value.dtype).eps * draw)
        return torch.where(torch.isfinite(moved), moved, value)
