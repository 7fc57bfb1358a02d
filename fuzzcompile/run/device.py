"""Where a case runs and under which numeric settings: devices, TF32, SDPA back ends, seeds.

All of it works without a GPU: the CUDA settings are process state that torch keeps in any build.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy
import torch

from fuzzcompile.model.device_option import device_index
from fuzzcompile.model.errors import EnvironmentUnfit


def resolve(option: str) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` stands for; ``auto`` prefers CUDA.

    Raises:
        UsageError: ``option`` is spelled otherwise.
        EnvironmentUnfit: the machine has no such device.
    """
    index = device_index(option)
    if option == "cpu" or (option == "auto" and not _cuda_count()):
        return torch.device("cpu")
    count = _cuda_count()
    if count == 0:
        raise EnvironmentUnfit(f"torch {torch.__version__} sees no CUDA device here; use --device cpu.")
    if index >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise EnvironmentUnfit(f"There is no {option}: the machine has {count} CUDA device(s), {known}.")
    return torch.device("cuda", index)


def assign(option: str, workers: int) -> tuple[str, ...]:
    """The device of each worker: ``auto`` and ``cuda`` spread over all GPUs, ``cuda:N`` pins them all.

    Raises:
        UsageError: ``option`` is not a device.
        EnvironmentUnfit: the machine has no such device.
    """
    device = resolve(option)
    if device.type == "cuda" and ":" not in option:
        count = _cuda_count()
        return tuple(f"cuda:{worker % count}" for worker in range(workers))
    return (str(device),) * workers


def assigned(option: str, number: int) -> torch.device:
    """The device of worker ``number``, counted from 0: that of :func:`assign` for any number of workers.

    Raises:
        UsageError: ``option`` is not a device.
        EnvironmentUnfit: the machine has no such device.
    """
    return torch.device(assign(option, number + 1)[number])


def _cuda_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, those of all GPUs among them."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # NumPy's legacy generator, which is the one that scripts use
    if _cuda_count():
        torch.manual_seed(seed)
    else:  # torch.manual_seed keeps three formatted stacks for devices that may come, some 20 times a case
        torch.default_generator.manual_seed(seed)


# torch has two APIs for TF32. A write through the new one (fp32_precision) makes the old one (allow_tf32,
# get_float32_matmul_precision) raise when it is read, and Inductor and dynamo read both. So we write through
# the old one, which keeps the two in step, and read in a way that survives a case that has used the new one.


def _float32_matmul() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _cudnn_tf32() -> bool:
    return bool(_backend("cudnn.conv.fp32_precision") == "tf32")


def _clear_new_tf32_api() -> None:
    """Clear what only the new API can set, as it takes precedence over the old one."""
    for group in (torch.backends, *map(_backend, ("cudnn", "mkldnn", "mkldnn.conv", "mkldnn.rnn"))):
        setattr(group, "fp32_precision", "none")  # noqa: B010 - stubs don't know it


def _backend(path: str) -> object:
    """An attribute below ``torch.backends``; some are made at run time, and torch's stubs lack them."""
    return operator.attrgetter(path)(torch.backends)


def _switch(default: bool | str, read: Callable[[], bool | str], write: Callable[[Any], object]) -> Any:
    """A field of :class:`Numerics`, with the functions that read and write its setting."""
    return field(default=default, metadata={"read": read, "write": write})


def _attribute(default: bool, owner: object, name: str) -> Any:
    return _switch(default, partial(getattr, owner, name), partial(setattr, owner, name))


_CUDA, _CUDNN = torch.backends.cuda, torch.backends.cudnn


@dataclass(frozen=True)
class Numerics:
    """The process-wide switches that change floating-point results; the defaults are what we run under.

    TF32 is off, so that float32 means float32; the rest are torch's own defaults, because a report under other
    settings would not be believed. ``float32_matmul`` has torch's values: "highest", "high" (TF32) or "medium"
    (bfloat16), and applies to oneDNN on the CPU as well.
    """

    float32_matmul: str = _switch("highest", _float32_matmul, torch.set_float32_matmul_precision)
    cudnn_tf32: bool = _switch(False, _cudnn_tf32, partial(setattr, _CUDNN, "allow_tf32"))
    fp16_reduced_precision_reduction: bool = _attribute(True, _CUDA.matmul, "allow_fp16_reduced_precision_reduction")
    bf16_reduced_precision_reduction: bool = _attribute(True, _CUDA.matmul, "allow_bf16_reduced_precision_reduction")
    fp16_accumulation: bool = _attribute(False, _CUDA.matmul, "allow_fp16_accumulation")
    math_sdp_reduced_precision_reduction: bool = _switch(
        False, _CUDA.fp16_bf16_reduction_math_sdp_allowed, _CUDA.allow_fp16_bf16_reduction_math_sdp
    )
    cudnn_deterministic: bool = _attribute(False, _CUDNN, "deterministic")
    cudnn_benchmark: bool = _attribute(False, _CUDNN, "benchmark")
    flash_sdp: bool = _switch(True, _CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp)
    mem_efficient_sdp: bool = _switch(True, _CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp)
    math_sdp: bool = _switch(True, _CUDA.math_sdp_enabled, _CUDA.enable_math_sdp)
    cudnn_sdp: bool = _switch(True, _CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp)

    @classmethod
    def current(cls) -> Numerics:
        """The settings now in force."""
        return cls(**{setting.name: setting.metadata["read"]() for setting in fields(cls)})

    def apply(self) -> None:
        """Put these settings in force, but for those that :func:`holding` holds."""
        _clear_new_tf32_api()
        kept = replace(self, **held())
        for setting in fields(self):
            setting.metadata["write"](getattr(kept, setting.name))

    def to_json(self) -> dict[str, bool | str]:
        """The settings by name."""
        return asdict(self)


@contextlib.contextmanager
def pinned(numerics: Numerics) -> Iterator[None]:
    """Apply these settings inside the block, and restore the previous ones after it."""
    before = Numerics.current()
    numerics.apply()
    try:
        yield
    finally:
        before.apply()


_held: list[Mapping[str, bool | str]] = []


def held() -> dict[str, Any]:
    """The fields of :class:`Numerics` that are held at a value; inner blocks win."""
    return {name: value for settings in _held for name, value in settings.items()}


@contextlib.contextmanager
def holding(**settings: bool | str) -> Iterator[None]:
    """Hold fields of :class:`Numerics` at these values in the block, whatever else is applied there."""
    before = Numerics.current()
    _held.append(settings)
    try:
        Numerics.current().apply()
        yield
    finally:
        _held.pop()
        before.apply()


def reapply_held() -> None:
    """Put what is held in force again, after code that may have set otherwise."""
    if _held:
        Numerics.current().apply()
