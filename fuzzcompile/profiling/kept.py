"""What is kept of a run: the inputs and outputs of each call of a layer, whole or sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

# Seeds the choice of elements, so that two machines sample the same.
_SEED = 14


@dataclass(frozen=True)
class KeptTensor:
    """A tensor of a run, on the CPU.

    Attributes:
        values: the whole tensor in its shape, or 1-D: its elements at :func:`positions`.
        shape: its shape in the run.
        dtype: its dtype in the run; ``values`` have the same.
        whole: whether all elements were kept.
    """

    values: torch.Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: bool = True

    @classmethod
    def of(cls, tensor: torch.Tensor, most: int | None = None) -> KeptTensor:
        """Keep a copy of ``tensor``, of at most ``most`` elements (None: of all)."""
        detached = tensor.detach()
        shape, count = tuple(detached.shape), detached.numel()
        if most is None or count <= most:
            return cls(detached.to("cpu", copy=True), shape, detached.dtype)
        chosen = positions(count, most).to(detached.device)
        return cls(detached.reshape(-1)[chosen].cpu(), shape, detached.dtype, whole=False)

    def same_elements(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of another run's ``tensor`` that correspond to ``values``, on the CPU, in their shape."""
        if self.whole:
            return tensor.detach().cpu()
        return tensor.detach().reshape(-1)[positions(tensor.numel(), self.values.numel()).to(tensor.device)].cpu()


def positions(count: int, most: int) -> torch.Tensor:
    """``most`` of ``count`` positions in ascending order (int64), the same on every machine."""
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(count, (most,), generator=generator).sort().values


@dataclass(frozen=True)
class KeptCall:
    """One call of a layer: the tensors among its arguments and in its result, in the order of their tree."""

    name: str
    number: int
    kind: str
    inputs: Sequence[KeptTensor]
    outputs: Sequence[KeptTensor]

    @property
    def label(self) -> str:
        """The layer's name, with the number of the call behind it from the second on."""
        return self.name if not self.number else f"{self.name}#{self.number + 1}"


@dataclass(frozen=True)
class Activations:
    """All calls of one run, in the order in which they ended, and how the run was made.

    Attributes:
        calls: by name and number.
        facts: what identifies the run (see :mod:`fuzzcompile.profiling.recording`); empty for one made just now.
    """

    calls: Mapping[tuple[str, int], KeptCall]
    facts: Mapping[str, str] = field(default_factory=dict)
