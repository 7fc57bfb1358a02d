"""The state that surrounds a call: grad mode, autocast, numerics, defaults, random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from fuzzcompile.case import GradMode
from fuzzcompile.execution.device import Numerics, pinned

_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Autocast:
    """One device type's autocast state."""

    device: str
    enabled: bool
    dtype: torch.dtype
    cache: bool

    @classmethod
    def current(cls, device: str) -> Autocast:
        """The state that is in force."""
        return cls(
            device,
            torch.is_autocast_enabled(device),
            torch.get_autocast_dtype(device),
            torch.is_autocast_cache_enabled(),
        )


@dataclass(frozen=True)
class RandomState:
    """The states of Python's, NumPy's and torch's generators."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]

    @classmethod
    def current(cls) -> RandomState:
        """The states as they are now."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the generators back to these states."""
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))


@dataclass(frozen=True)
class Ambient:
    """What was in force at the moment of a call, to be in force again around each run of it."""

    grad: GradMode
    autocast: tuple[Autocast, ...]
    numerics: Numerics
    random: RandomState
    default_dtype: torch.dtype
    deterministic: tuple[bool, bool]
    onednn: bool
    threads: int
    precisions: tuple[str, ...]
    device: torch.device

    @classmethod
    def current(cls) -> Ambient:
        """The state as it is now."""
        return cls(
            _grad_mode(),
            tuple(Autocast.current(device) for device in _AUTOCAST_DEVICES),
            Numerics.current(),
            RandomState.current(),
            torch.get_default_dtype(),
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            bool(torch.backends.mkldnn.enabled),
            torch.get_num_threads(),
            tuple(str(group.fp32_precision) for group in _precision_groups()),
            torch.get_default_device(),
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have all of it in force in the block, but for grad mode and random state, which a run sets itself."""
        dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        with contextlib.ExitStack() as stack:
            stack.enter_context(pinned(self.numerics))
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(self.default_dtype)
            stack.callback(torch.set_num_threads, threads)
            torch.set_num_threads(self.threads)
            stack.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
            torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
            stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.enabled = self.onednn  # type: ignore[assignment] # a property made at run time
            for group, precision in zip(_precision_groups(), self.precisions, strict=True):
                # What went through the older API is in the numerics; they are pinned, and set back, by both.
                if group.fp32_precision != precision and precision != "none":
                    group.fp32_precision = precision
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            for cast in self.autocast:
                if cast.enabled:
                    region = torch.autocast(cast.device, dtype=cast.dtype, cache_enabled=cast.cache)
                    stack.enter_context(region)
            yield


def _precision_groups() -> list[Any]:
    """Where torch's newer API keeps the precision of float32 products, by backend and operator."""
    owners = [torch.backends, torch.backends.mkldnn, torch.backends.cudnn]
    groups: list[Any] = [group for group in owners if hasattr(group, "fp32_precision")]
    for owner in owners[1:]:
        parts = (getattr(owner, name, None) for name in ("matmul", "conv", "rnn"))
        groups += [part for part in parts if hasattr(part, "fp32_precision")]
    return groups


def _grad_mode() -> GradMode:
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    return "enabled" if torch.is_grad_enabled() else "no_grad"
