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
    """Samples along the first dimension of a case's inputs.

    Attributes:
        case: the first call of the case, without its backward, whose loss would mix the samples.
        size: how many samples.
        rows: the samples that are looked at alone: the first, the last, and some between.
        first_alone: only the first input holds samples.
    """

    case: Case
    size: int
    rows: tuple[int, ...]
    first_alone: bool = False

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
        taken = 0

        def narrowed(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal taken
            if not tensor.dim() or tensor.shape[0] != self.size or isinstance(tensor, torch.nn.Parameter):
                return tensor
            taken += 1
            return tensor if self.first_alone and taken > 1 else tensor.narrow(0, number, 1).detach().clone()

        return map_tensors(narrowed, inputs)


def batches_of(case: Case, program: Program) -> list[Batch]:
    """The batches that a case's first call may take, the likelier first.

    All inputs whose first dimension has the size of the first input's hold rows, or the first input alone does; weights
    among the inputs may have that size too.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(program.calls[0]) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    size = tensors[0].shape[0] if tensors else 0
    if size < 2:
        return []
    count = min(size, CAPTURED_CALLS)
    rows = tuple(sorted({round(place * (size - 1) / (count - 1)) for place in range(count)}))
    plain = replace(case, calls=None, backward=False)
    shared = sum(tensor.shape[0] == size for tensor in tensors) > 1
    return [Batch(plain, size, rows, first_alone) for first_alone in ((False, True) if shared else (False,))]


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
