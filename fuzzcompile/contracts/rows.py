"""The rows of a batch: inputs that hold one sample each, and the part of a value that belongs to a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.case import Case
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.execution.building import Program
from fuzzcompile.execution.tensors import map_tensors


@dataclass(frozen=True)
class Batch:
    """What the first dimension of a case's inputs holds.

    Attributes:
        case: the first call of the case, without its backward, whose loss would mix the samples.
        size: how many samples.
        rows: the samples that are looked at alone: the first, the last, and some between.
    """

    case: Case
    size: int
    rows: tuple[int, ...]

    def alone(self) -> Case:
        """The case whose calls are the rows, one by one."""
        make = self.case.make

        def first() -> tuple[object, object]:
            model, inputs = make()
            return model, self.row(inputs, self.rows[0])

        _, inputs = make()
        rest = [self.row(inputs, number) for number in self.rows[1:]]
        return replace(self.case, make=first, calls=rest)  # type: ignore[arg-type]

    def row(self, inputs: object, number: int) -> object:
        """The inputs of one sample; tensors without the batch's dimension stay as they are."""

        def narrowed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.narrow(0, number, 1).detach().clone() if self.has_rows(tensor) else tensor

        return map_tensors(narrowed, inputs)

    def has_rows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's first dimension is the batch's."""
        return tensor.dim() > 0 and tensor.shape[0] == self.size and not isinstance(tensor, torch.nn.Parameter)


def batch_of(case: Case, program: Program) -> Batch | None:
    """The batch that a case's first call takes; None if its first tensor has no dimension of two or more samples."""
    tensors = [leaf for leaf in pytree.tree_leaves(program.calls[0]) if isinstance(leaf, torch.Tensor)]
    shaped = [tensor for tensor in tensors if tensor.dim() > 0]
    size = shaped[0].shape[0] if shaped else 0
    if size < 2:
        return None
    count = min(size, CAPTURED_CALLS)
    rows = sorted({round(place * (size - 1) / (count - 1)) for place in range(count)})
    return Batch(replace(case, calls=None, backward=False), size, tuple(rows))


def row_of(value: torch.Tensor, alone: torch.Tensor, size: int, number: int) -> torch.Tensor | None:
    """The part of a batch's value that belongs to one sample.

    Args:
        value: of the whole batch.
        alone: the same value of a sample alone, whose shape says where the samples are.
        size: how many samples.
        number: of the sample.

    Returns:
        None if the shapes do not say which dimension holds the samples.
    """
    if value.dtype != alone.dtype:
        return None
    if value.dim() != alone.dim():
        return _row_of_flat(value, alone, size, number)
    apart = [dim for dim, sizes in enumerate(zip(value.shape, alone.shape, strict=True)) if sizes[0] != sizes[1]]
    if not apart:
        return value  # no sample enters it, as in a table of positions
    dim = apart[0]
    if len(apart) > 1 or value.shape[dim] != size * alone.shape[dim]:
        return None
    return value.narrow(dim, number * alone.shape[dim], alone.shape[dim])


def _row_of_flat(value: torch.Tensor, alone: torch.Tensor, size: int, number: int) -> torch.Tensor | None:
    """The same where a compiler dropped the dimension of a sample that is alone."""
    if value.numel() != size * alone.numel() or not value.dim() or value.shape[0] != size:
        return None
    part = value[number]
    return part.reshape(alone.shape) if _without_ones(part.shape) == _without_ones(alone.shape) else None


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
