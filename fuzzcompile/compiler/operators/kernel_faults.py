"""Faults of eager mode's kernels: one reads memory beside its arguments, or is wrong in a dtype or for a size.

The first gives other values from run to run, and no reference that calls it is steady. Here the arguments lie in memory
of their own, between elements that are chosen: twice with other ones, and once as contiguous copies. The second is
right in float64, and the third on the same values in other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.operators.operator_application import (
    Arguments,
    is_contiguous,
    make_contiguous,
    name_arguments,
)
from fuzzcompile.compiler.operators.second_reference import (
    NO_ANSWER,
    ContestedCall,
    PartedOpinion,
    copy_operands,
    find_opinion,
    is_comparable,
    list_computed,
    measure_change,
    reads_storage,
    repair_values,
    widen_arguments,
)
from fuzzcompile.model.thresholds import ALWAYS_ALLOWED, NOISE_SEEDS, ROUNDING_FACTOR, SEMANTIC_STEP
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.tensors import Operator, copy_tree, is_inexact, map_leaves, materialize_zeros

# Elements on either side of an argument, beside as many as it has.
_PADDING = 256


class SurroundingsCheck(OperatorMode):  # type: ignore[no-untyped-call]
    """Find the calls whose kernel is steady on contiguous copies, and not where memory beside its arguments differs."""

    def __init__(self) -> None:
        super().__init__(self._compute)
        self.contested: list[ContestedCall] = []
        self._calls = 0

    def _compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        self._calls += 1
        args, kwargs = map_leaves(materialize_zeros, (args, kwargs))
        if not func._schema.is_mutable and not reads_storage(func) and is_comparable(func, args, kwargs):
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if not all(map(is_contiguous, tensors)):
                self._compare(func, (args, kwargs))
        return func(*args, **kwargs)

    def _compare(self, func: Operator, given: Arguments) -> None:
        placed: list[Arguments] = [_surround(given, sign) for sign in (1, -1)]
        try:
            plain = [_call(func, make_contiguous(copy_tree(given))) for _ in range(2)]
            ours = [_call(func, copy_tree(arguments)) for arguments in placed]
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):  # it refuses such arguments
            return
        step = max(measure_change(given, mine, plain[0]) for mine in ours)
        if _have_same_bits(*plain) and not _have_same_bits(*ours) and step > SEMANTIC_STEP:
            opinion = PartedOpinion("surroundings", step, by_layout=True)
            self.contested.append(ContestedCall(self._calls, func, placed[0], opinion))


class NativeCheck(OperatorMode):  # type: ignore[no-untyped-call]
    """Compare every operator of a run in its own dtypes with its kernel in float64.

    Calls that part by more than a few units in the last place of their results are contested, which says nothing yet:
    rounding may part them farther. Those in ``repaired`` get float64's values.
    """

    def __init__(self, repaired: Collection[int] = ()) -> None:
        super().__init__(self._compute)
        self.contested: list[ContestedCall] = []
        self._repaired, self._calls = repaired, 0

    def _compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if not is_comparable(func, args, kwargs):
            return func(*args, **kwargs)
        self._calls += 1
        args, kwargs = map_leaves(materialize_zeros, (args, kwargs))
        before = copy_tree((args, kwargs))
        result = func(*args, **kwargs)
        own = list_computed(func, result, (args, kwargs))
        dtypes = [value.dtype for value in own if value is not None and value.is_floating_point()]
        try:
            wide = widen_arguments(before)
            exact = list_computed(func, func(*wide[0], **wide[1]), wide)
            step = measure_change(before, own, exact)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # no kernel for float64
            return result
        if self._calls in self._repaired:
            repair_values(own, exact)
        elif dtypes and step > self._measure_allowance(func, before, exact, dtypes):
            self.contested.append(ContestedCall(self._calls, func, before, PartedOpinion("float64", step)))
        return result

    def _measure_allowance(
        self, func: Operator, given: Arguments, exact: Sequence[torch.Tensor | None], dtypes: Sequence[torch.dtype]
    ) -> float:
        """How far rounding of the result, and of the arguments, may move it: an algorithm is as good as that."""
        eps = max(torch.finfo(dtype).eps for dtype in dtypes)
        generator, spread = torch.Generator().manual_seed(0), 0.0

        def move(x: torch.Tensor) -> torch.Tensor:
            if not is_inexact(x):
                return x
            return x * (1 + eps * (torch.rand(x.shape, generator=generator) * 2 - 1)).to(x.dtype)

        for _ in NOISE_SEEDS:
            moved = pytree.tree_map_only(torch.Tensor, move, widen_arguments(given))
            computed = list_computed(func, func(*moved[0], **moved[1]), moved)
            spread = max(spread, measure_change(given, computed, exact))
        return ALWAYS_ALLOWED * eps + ROUNDING_FACTOR * spread


class ContiguousFloat64(Float64Mode):  # type: ignore[no-untyped-call]
    """Run each operator in float64, one of them on contiguous copies of some arguments."""

    def __init__(self, call: ContestedCall, *, native: torch.dtype) -> None:
        super().__init__(keep_casts=True, native=native)
        self._call = call

    def compute(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operator by its own kernel."""
        return call_on_copies(self._call, func, args, kwargs)


def call_on_copies(call: ContestedCall, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator; that of a contested call on contiguous copies of the arguments that it misreads."""
    if func is not call.operator:
        return func(*args, **kwargs)
    return func(**copy_operands(name_arguments(func, (args, kwargs)), call.misread))


def _call(func: Operator, arguments: Arguments) -> list[torch.Tensor | None]:
    return list_computed(func, func(*arguments[0], **arguments[1]), arguments)


def _have_same_bits(first: Sequence[torch.Tensor | None], second: Sequence[torch.Tensor | None]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(a is b or (a is not None and b is not None and have_same_values(a, b)) for a, b in pairs)


def _surround(arguments: Arguments, sign: int) -> Arguments:
    """The arguments, each laid out as it is in memory of its own; what lies around and between its elements is chosen.

    Chosen are numbers of the size of the tensor's own, so that one that is taken for an index stays within bounds.
    """

    def place(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or not tensor.numel():
            return tensor
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        padding = _PADDING + tensor.numel()
        storage = torch.full((span + 2 * padding,), _choose(tensor, sign), dtype=tensor.dtype, device=tensor.device)
        # Elements may share memory, so that the view cannot be written to.
        places = torch.arange(span, device=tensor.device).as_strided(tensor.shape, tensor.stride())
        storage[padding + places.flatten()] = tensor.detach().flatten()
        return storage.as_strided(tensor.shape, tensor.stride(), padding)

    placed: Arguments = pytree.tree_map_only(torch.Tensor, place, arguments)
    return placed


def _choose(tensor: torch.Tensor, sign: int) -> float | int | bool:
    if tensor.dtype is torch.bool:
        return sign > 0
    if not is_inexact(tensor):
        return int(tensor.max()) if sign > 0 else 0
    finite = torch.nan_to_num(tensor.detach().abs().float(), 0.0, 0.0, 0.0)
    return sign * (2 * float(finite.max()) + 1)


# Opinions that are the kernel's own elsewhere, which say nothing of its sizes.
_OWN = ("contiguous", "differences", "float64", "surroundings", "place")
# Sizes of one call that are tried, the largest first.
_MOST_SIZES = 4
Change: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class WrongSize:
    """The ``size`` of a dimension with which a kernel is wrong, and those with which it is ``right``."""

    size: int
    right: list[int]


def find_wrong_size(call: ContestedCall) -> WrongSize | None:
    """The size with which a kernel is wrong; None where it is wrong with others too, or cannot be called with them.

    All dimensions of one size, in every tensor, are made one longer, which repeats a value or adds a 1 to none, or are
    cut into halves, both of which must be right: all values are still there, so that it is not for them that the
    kernel is wrong.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(call.arguments) if isinstance(leaf, torch.Tensor)]
    if call.opinion.by in _OWN or not isinstance(call.operator, torch._ops.OpOverload):
        return None
    for size in sorted({size for tensor in tensors for size in tensor.shape}, reverse=True)[:_MOST_SIZES]:
        if _is_right(call, size, [_lengthen]):
            return WrongSize(size, [size + 1])
        half = size // 2
        if half and _is_right(call, size, [_keep(0, half), _keep(half, size)]):
            return WrongSize(size, sorted({half, size - half}))
    return None


def _is_right(call: ContestedCall, size: int, changes: Iterable[Change]) -> bool:
    """Return whether the kernel agrees with the other opinion once all dimensions of a size are changed."""

    def change_all(change: Change) -> Arguments:
        def apply(tensor: torch.Tensor) -> torch.Tensor:
            for dim in (dim for dim, length in enumerate(tensor.shape) if length == size):
                tensor = change(tensor, dim)
            return tensor.clone()

        changed: Arguments = pytree.tree_map_only(torch.Tensor, apply, call.arguments)
        return changed

    try:
        opinions = [find_opinion(call.operator, change_all(change)) for change in changes]
    except NO_ANSWER:
        return False  # another argument gives the size
    return all(opinion is None for opinion in opinions)


def _lengthen(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    sizes = list(tensor.shape)
    sizes[dim] = 1
    more = tensor.narrow(dim, 0, 1) if tensor.shape[dim] else tensor.new_ones(sizes)
    return torch.cat((tensor, more), dim)


def _keep(start: int, stop: int) -> Change:
    return lambda tensor, dim: tensor.narrow(dim, start, stop - start)
