"""What is kept of a run: the inputs and outputs of each call of a layer, whole or sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

# Seeds the choice of elements, so that two machines sample the same.
_SEED = 14
# Elements of a tensor for which there is no room.
SAMPLE = 4096


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

    @classmethod
    def view(cls, tensor: torch.Tensor) -> KeptTensor:
        """The whole of ``tensor`` without a copy, where it does not change any more."""
        return cls(tensor.detach(), tuple(tensor.shape), tensor.dtype)

    def beside(self, other: KeptTensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The elements of both that correspond, on the CPU; None if both are samples of different sizes.

        Both have one shape in their runs.
        """
        if self.whole and other.whole:
            return self.values.cpu(), other.values.cpu()
        if self.whole or other.whole:
            count = (other if self.whole else self).values.numel()
            first, second = (kept._sample(count) if kept.whole else kept.values for kept in (self, other))
            return first, second
        return (self.values, other.values) if self.values.shape == other.values.shape else None

    def _sample(self, count: int) -> torch.Tensor:
        return self.values.reshape(-1)[positions(self.values.numel(), count).to(self.values.device)].cpu()


class Keeping:
    """Keeps the tensors of one run: whole while ``budget`` bytes last, then :data:`SAMPLE` elements of each.

    A tensor that leaves one layer and enters the next is kept once: it has the bits of the one kept last in its shape.
    """

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._last: dict[tuple[torch.dtype, tuple[int, ...]], KeptTensor] = {}

    def __call__(self, tensor: torch.Tensor) -> KeptTensor:
        """Keep ``tensor``; a parameter on the CPU, which a run does not change, is not copied."""
        if isinstance(tensor, nn.Parameter) and tensor.device.type == "cpu":
            return KeptTensor(tensor.detach(), tuple(tensor.shape), tensor.dtype)
        key = tensor.dtype, tuple(tensor.shape)
        last = self._last.get(key)
        if last is not None and last.whole and torch.equal(last.values, tensor.detach().to(last.values.device)):
            return last
        size = tensor.numel() * tensor.element_size()
        kept = KeptTensor.of(tensor, None if size <= self._left else SAMPLE)
        self._left -= kept.values.nbytes
        self._last[key] = kept
        return kept


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
        facts: what identifies the run (see :mod:`fuzzcompile.analyses.profile.recording`); empty for one made just now.
    """

    calls: Mapping[tuple[str, int], KeptCall]
    facts: Mapping[str, str] = field(default_factory=dict)
