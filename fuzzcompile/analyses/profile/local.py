"""Layers run alone, again, on other inputs: that tells an error made in a layer from one that it inherited."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.analyses.profile.kept import KeptTensor
from fuzzcompile.analyses.profile.taps import filled, leaves
from fuzzcompile.programs.capture.case_loader import copy_objects
from fuzzcompile.programs.capture.state import RandomState
from fuzzcompile.run.noise import UlpNoise

Mode = contextlib.AbstractContextManager[object]
_NOISE_SEED = 1


@dataclass(frozen=True)
class Entered:
    """A call of a layer as it begins: its arguments, and the random state in which it runs."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    random: RandomState

    @classmethod
    def now(cls, args: tuple[object, ...], kwargs: dict[str, object]) -> Entered:
        """The call that begins now; what it can change is copied: tensors, and objects such as a key-value cache."""
        copies = iter([_unchanging(tensor) for tensor in leaves((args, kwargs))])
        return cls(*filled(copy_objects((args, kwargs)), copies), RandomState.current())

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        return leaves((self.args, self.kwargs))


def _unchanging(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


class Alone:
    """Runs one module or operator alone, and leaves its buffers and the random streams as they were.

    Args:
        function: the layer.
        entered: the call that is repeated.
        device: where the layer's parameters are.
    """

    def __init__(self, function: Callable[..., object], entered: Entered, device: torch.device) -> None:
        self._function, self._entered, self._device = function, entered, device
        self._buffers = {name: buffer.detach().clone() for name, buffer in self._own_buffers()}

    def on(self, inputs: Sequence[torch.Tensor], *modes: Mode) -> list[torch.Tensor]:
        """What the layer returns for ``inputs``, which take the place of the tensors it was called with."""
        placed = iter([tensor.to(self._device, copy=True) for tensor in inputs])
        args, kwargs = filled(copy_objects((self._entered.args, self._entered.kwargs)), placed)
        with contextlib.ExitStack() as stack:
            stack.callback(RandomState.current().restore)
            self._entered.random.restore()
            stack.enter_context(_disable_current_modes())
            stack.callback(self._restore)
            for mode in modes:
                stack.enter_context(mode)
            return [result.detach() for result in leaves(self._function(*args, **kwargs))]

    def perturbed(self, inputs: Sequence[torch.Tensor], *modes: Mode) -> list[torch.Tensor]:
        """What it returns with every input, and every operator's result, moved by up to one ulp."""
        return self.on(_moved(inputs), *modes, UlpNoise(_NOISE_SEED))

    def _own_buffers(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self._function.named_buffers() if isinstance(self._function, nn.Module) else ()

    def _restore(self) -> None:
        with torch.no_grad():
            for name, buffer in self._own_buffers():
                before = self._buffers.get(name)
                if before is not None and not torch.equal(buffer, before):
                    buffer.copy_(before)


def _moved(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(_NOISE_SEED)

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        draw = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device)
        narrow = (tensor.double() * (1 + torch.finfo(tensor.dtype).eps * draw)).to(tensor.dtype)
        return torch.where(torch.isfinite(narrow), narrow, tensor)

    return [noisy(tensor) for tensor in tensors]


def misfit(kept: Sequence[KeptTensor], own: Sequence[torch.Tensor]) -> str | None:
    """Why kept inputs cannot take the place of a layer's own; None if they can."""
    if len(kept) != len(own):
        return f"it got {len(kept)} tensors, and {len(own)} in the reference"
    for tensor, was in zip(kept, own, strict=True):
        if tensor.shape != tuple(was.shape):
            return f"it got a tensor of shape {tensor.shape}, and of {tuple(was.shape)} in the reference"
        if not tensor.whole:
            return "its inputs were recorded as samples"
    return None
