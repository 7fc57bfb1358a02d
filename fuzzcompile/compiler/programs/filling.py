"""Values for the holes of a skeleton, found by running it eagerly on tiny tensors."""

from __future__ import annotations

import operator
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.programs.candidates import Candidates
from fuzzcompile.compiler.programs.parameters import annotate
from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made, Skeleton
from fuzzcompile.generation.patterned import Operand

# Values that are tried for one call before an earlier one is given others, and calls that one filling may try.
_WIDTH, _MOST_CALLS = 40, 800
_SECONDS = 1.5
# Results of more elements than this are no tiny program's.
_MOST_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Filled:
    """A skeleton with a value for each hole: an operand for a tensor, else the value itself."""

    skeleton: Skeleton
    values: dict[Hole, object]


def fill(skeleton: Skeleton, rng: random.Random, dtype: str, constants: Sequence[object] = ()) -> Filled | None:
    """Values with which all calls run in eager mode; None if none were found."""
    for call in skeleton.calls:
        annotate(call, rng)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Search(skeleton, Candidates(rng, dtype, constants)).run()


def recast(filled: Filled, dtype: str) -> Filled | None:
    """The same with all floating operands of another dtype; None where the calls do not take it."""

    def cast(value: object) -> object:
        return replace(value, dtype=dtype) if isinstance(value, Operand) and value.floating else value

    values = {hole: pytree.tree_map(cast, value, is_leaf=_is_operand) for hole, value in filled.values.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Filled(filled.skeleton, values) if _Search.of(filled.skeleton, values).replayed() else None


class _Search:
    def __init__(self, skeleton: Skeleton, candidates: Candidates) -> None:
        self.skeleton, self.candidates = skeleton, candidates
        self.values: dict[Hole, object] = {}
        self.tensors: dict[Hole, object] = {}
        self.results: list[object] = []
        self.left, self.until = _MOST_CALLS, time.monotonic() + _SECONDS

    @classmethod
    def of(cls, skeleton: Skeleton, values: dict[Hole, object]) -> _Search:
        """A search that is at its end."""
        search = cls(skeleton, Candidates(random.Random(0), "float32"))
        search.values = values
        search.tensors = {hole: pytree.tree_map(_tensor, value, is_leaf=_is_operand) for hole, value in values.items()}
        return search

    def replayed(self) -> bool:
        """Whether all calls run."""
        return all(self._runs(call) for call in self.skeleton.calls)

    def run(self) -> Filled | None:
        return Filled(self.skeleton, dict(self.values)) if self._from(0) else None

    def _from(self, index: int) -> bool:
        """Fill the calls from ``index`` on."""
        if index == len(self.skeleton.calls):
            return True
        call = self.skeleton.calls[index]
        open_holes = [hole for hole in call.holes() if hole not in self.values]
        for _ in range(_WIDTH if open_holes else 1):
            if self.left <= 0 or time.monotonic() > self.until:
                return False
            self.left -= 1
            self._draw(call, open_holes)
            if self._runs(call) and self._from(index + 1):
                return True
            del self.results[index:]
            for hole in open_holes:
                self.values.pop(hole, None)
                self.tensors.pop(hole, None)
        return False

    def _draw(self, call: Call, holes: Sequence[Hole]) -> None:
        known = [leaf for leaf in map(self._resolved, call.leaves()) if isinstance(leaf, torch.Tensor)]
        for hole in holes:
            value = self.candidates.value(hole, known) if hole.like is None else self.values.get(hole.like)
            self.values[hole] = value
            self.tensors[hole] = pytree.tree_map(_tensor, value, is_leaf=_is_operand)
            known += [leaf for leaf in pytree.tree_leaves(self.tensors[hole]) if isinstance(leaf, torch.Tensor)]

    def _runs(self, call: Call) -> bool:
        args, kwargs = pytree.tree_map(self._resolved, (call.args, call.kwargs), is_leaf=_is_open)
        try:
            if _is_private(call.target):
                called(call.target, *pytree.tree_map(_without_values, (args, kwargs)))
            result = called(call.target, args, kwargs)
        except Exception:  # of any kind: these are not the values that the operator takes
            return False
        self.results.append(result)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return bool(tensors) and all(tensor.numel() <= _MOST_ELEMENTS for tensor in tensors)

    def _resolved(self, leaf: object) -> object:
        if isinstance(leaf, Made):
            return self.results[leaf.index]
        return self.tensors.get(leaf) if isinstance(leaf, Hole) else leaf


def called(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """The result of a call; a target that is a string is a method of the first argument."""
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    if target is operator.getitem:
        return args[0][args[1]]
    return target(*args, **kwargs)


def _is_private(target: object) -> bool:
    """Whether an operator is meant for torch's own use: its kernel may take any arguments, and crash on wrong ones."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.partition("::")[2].startswith("_")


def _without_values(value: object) -> object:
    """A tensor without values, for which an operator's meta function checks its arguments."""
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _is_open(leaf: object) -> bool:
    return isinstance(leaf, (Hole, Made))


def _is_operand(leaf: object) -> bool:
    return isinstance(leaf, Operand)


def _tensor(value: object) -> object:
    return tensor_of(value) if isinstance(value, Operand) else value


def tensor_of(operand: Operand) -> torch.Tensor:
    """A tensor like an operand."""
    dtype = getattr(torch, operand.dtype)
    if operand.dtype == "bool":
        return torch.rand(operand.shape) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(operand.shape).to(dtype)
    return torch.randint(0, operand.high, operand.shape, dtype=dtype)


def named(filled: Filled) -> Filled:
    """The same with names for the operands, in the order in which they are used."""
    number = 0

    def name(value: object) -> object:
        nonlocal number
        if not isinstance(value, Operand):
            return value
        number += 1
        return replace(value, name=f"x{number - 1}")

    values = {hole: pytree.tree_map(name, value, is_leaf=_is_operand) for hole, value in filled.values.items()}
    return Filled(filled.skeleton, values)
