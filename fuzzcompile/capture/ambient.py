"""The state that surrounds a call: grad mode, autocast, numerics, defaults, random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import numpy
import torch

from fuzzcompile.case import GradMode
from fuzzcompile.execution.device import Numerics, held, pinned

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
        """The current state for a device type."""
        return cls(
            device,
            torch.is_autocast_enabled(device),
            torch.get_autocast_dtype(device),
            torch.is_autocast_cache_enabled(),
        )


@dataclass(frozen=True)
class RandomState:
    """The states of Python's, NumPy's and torch's generators, as the calls that set them."""

    setters: tuple[Callable[[], object], ...]

    @classmethod
    def current(cls) -> RandomState:
        """The states as they are now."""
        setters: list[Callable[[], object]] = [
            partial(random.setstate, random.getstate()),
            partial(numpy.random.set_state, numpy.random.get_state()),
            partial(torch.set_rng_state, torch.get_rng_state()),
        ]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            setters.append(partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        return cls(tuple(setters))

    def restore(self) -> None:
        """Set the generators back to these states."""
        for setter in self.setters:
            setter()


@dataclass(frozen=True)
class Ambient:
    """The state around a call, which surrounds each run of it again."""

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
        """Apply the state in the block, except for grad mode and random state, which a run sets itself."""
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
            own = () if "float32_matmul" in held() else self.precisions
            for group, precision in zip(_precision_groups(), own, strict=bool(own)):
                # A setting made by the older API is among the numerics, which pin and restore it in both.
                if group.fp32_precision != precision and precision != "none":
                    group.fp32_precision = precision
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            for region in self.autocast:
                if region.enabled:
                    stack.enter_context(torch.autocast(region.device, dtype=region.dtype, cache_enabled=region.cache))
            yield


class _PrecisionGroup(Protocol):
    """A part of ``torch.backends`` that holds the precision of float32 products."""

    fp32_precision: str


def _precision_groups() -> list[_PrecisionGroup]:
    """The groups of torch's newer API for precision: whole backends, then single operators."""
    owners = [torch.backends, torch.backends.mkldnn, torch.backends.cudnn]
    parts = [getattr(owner, name, None) for owner in owners[1:] for name in ("matmul", "conv", "rnn")]
    return [cast("_PrecisionGroup", group) for group in (*owners, *parts) if hasattr(group, "fp32_precision")]


def _grad_mode() -> GradMode:
    if torch.is_inference_mode_enabled():
        return "inference_mode"
    return "enabled" if torch.is_grad_enabled() else "no_grad"
