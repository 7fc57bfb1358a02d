"""The device and the settings under which a case runs: TF32, SDPA back ends, seeds, autocast.

All of it works without a GPU: the CUDA settings are process state that torch keeps in any build.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import hashlib
import importlib.metadata
import operator
import os
import platform
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy
import psutil
import torch

from fuzzcompile.model.conditions import parse_device_index
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.subprocesses import capture_output, find_cxx_compiler
from fuzzcompile.run.tensors import list_tensors


def resolve_device(option: str) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` stands for; ``auto`` prefers CUDA.

    Raises:
        UsageError: ``option`` is spelled otherwise.
        EnvironmentUnfit: the machine has no such device.
    """
    index = parse_device_index(option)
    if option == "cpu" or (option == "auto" and not _cuda_count()):
        return torch.device("cpu")
    count = _cuda_count()
    if count == 0:
        raise EnvironmentUnfit(f"torch {torch.__version__} sees no CUDA device here; use --device cpu.")
    if index >= count:
        known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise EnvironmentUnfit(f"There is no {option}: the machine has {count} CUDA device(s), {known}.")
    return torch.device("cuda", index)


def assign_device(option: str, number: int) -> torch.device:
    """The device of worker ``number``, counted from 0: ``auto`` and ``cuda`` spread over all GPUs, ``cuda:N`` does not.

    Raises:
        UsageError: ``option`` is not a device.
        EnvironmentUnfit: the machine has no such device.
    """
    device = resolve_device(option)
    spreads = device.type == "cuda" and ":" not in option
    return torch.device("cuda", number % _cuda_count()) if spreads else device


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


# Attributes below torch.backends are read by their paths: some are made at run time, and torch's stubs lack them.


def read_float32_matmul() -> str:
    """``torch.get_float32_matmul_precision()``, which raises once the newer API was written to: then what that says."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _read_cudnn_tf32() -> bool:
    return bool(operator.attrgetter("cudnn.conv.fp32_precision")(torch.backends) == "tf32")


def _make_switch(default: bool | str, read: Callable[[], bool | str], write: Callable[[Any], object]) -> Any:
    """A field of :class:`Numerics`, with the functions that read and write its setting."""
    return field(default=default, metadata={"read": read, "write": write})


def _make_attribute_switch(default: bool, owner: object, name: str) -> Any:
    return _make_switch(default, partial(getattr, owner, name), partial(setattr, owner, name))


_CUDA, _CUDNN = torch.backends.cuda, torch.backends.cudnn


@dataclass(frozen=True)
class Numerics:
    """The process-wide switches that change floating-point results; the defaults are what we run under.

    TF32 is off, so that float32 means float32; the rest are torch's own defaults, because a report under other
    settings would not be believed. ``float32_matmul`` has torch's values: "highest", "high" (TF32) or "medium"
    (bfloat16), and applies to oneDNN on the CPU as well.
    """

    float32_matmul: str = _make_switch("highest", read_float32_matmul, torch.set_float32_matmul_precision)
    cudnn_tf32: bool = _make_switch(False, _read_cudnn_tf32, partial(setattr, _CUDNN, "allow_tf32"))
    fp16_reduced_precision_reduction: bool = _make_attribute_switch(
        True, _CUDA.matmul, "allow_fp16_reduced_precision_reduction"
    )
    bf16_reduced_precision_reduction: bool = _make_attribute_switch(
        True, _CUDA.matmul, "allow_bf16_reduced_precision_reduction"
    )
    fp16_accumulation: bool = _make_attribute_switch(False, _CUDA.matmul, "allow_fp16_accumulation")
    math_sdp_reduced_precision_reduction: bool = _make_switch(
        False, _CUDA.fp16_bf16_reduction_math_sdp_allowed, _CUDA.allow_fp16_bf16_reduction_math_sdp
    )
    cudnn_deterministic: bool = _make_attribute_switch(False, _CUDNN, "deterministic")
    cudnn_benchmark: bool = _make_attribute_switch(False, _CUDNN, "benchmark")
    flash_sdp: bool = _make_switch(True, _CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp)
    mem_efficient_sdp: bool = _make_switch(True, _CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp)
    math_sdp: bool = _make_switch(True, _CUDA.math_sdp_enabled, _CUDA.enable_math_sdp)
    cudnn_sdp: bool = _make_switch(True, _CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp)

    @classmethod
    def current(cls) -> Numerics:
        """The settings now in force."""
        return cls(**{setting.name: setting.metadata["read"]() for setting in fields(cls)})

    def apply(self) -> None:
        """Put these settings in force, but for those that :func:`hold_numerics` holds."""
        # What only the new API of TF32 can set takes precedence over the old one.
        new = operator.attrgetter("cudnn", "mkldnn", "mkldnn.conv", "mkldnn.rnn")(torch.backends)
        for group in (torch.backends, *new):
            setattr(group, "fp32_precision", "none")  # noqa: B010 - stubs don't know it
        kept = replace(self, **list_held())
        for setting in fields(self):
            setting.metadata["write"](getattr(kept, setting.name))

    def to_json(self) -> dict[str, bool | str]:
        """The settings by name."""
        return asdict(self)


@contextlib.contextmanager
def apply_numerics(numerics: Numerics) -> Iterator[None]:
    """Apply these settings inside the block, and restore the previous ones after it."""
    before = Numerics.current()
    numerics.apply()
    try:
        yield
    finally:
        before.apply()


_held: list[Mapping[str, bool | str]] = []


def list_held() -> dict[str, Any]:
    """The fields of :class:`Numerics` that are held at a value; inner blocks win."""
    return {name: value for settings in _held for name, value in settings.items()}


@contextlib.contextmanager
def hold_numerics(**settings: bool | str) -> Iterator[None]:
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


JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

T = TypeVar("T")


def describe_environment(device: torch.device, target: str | None = None) -> dict[str, JSON]:
    """Describe the environment of results on ``device``. Never raises: unknown entries are None.

    ``target`` names the device that the compiler was told, if that is another one.
    """
    told: dict[str, JSON] = {} if target is None else {"target": target}
    return copy.deepcopy(_describe_parts(str(device))) | told


@functools.cache
def _describe_parts(device: str) -> dict[str, JSON]:
    gpu = device.startswith("cuda")
    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": _try_or_none(_find_triton_version),
        "device": device,
        **{name: _try_or_none(partial(ask, device)) if gpu else None for name, ask in _GPU_FACTS.items()},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": _try_or_none(lambda: " ".join(platform.libc_ver()).strip() or None),
        "cpu": _try_or_none(_read_cpu_model),
        "cpu_capability": _try_or_none(torch.backends.cpu.get_cpu_capability),
        "machine": identify_machine(),
        "cpu_count": _try_or_none(lambda: len(os.sched_getaffinity(0))),
        "threads": torch.get_num_threads(),
        "cxx": _try_or_none(lambda: _read_first_line(str(find_cxx_compiler()), "--version")),
    }


@functools.cache
def identify_machine() -> str:
    """Eight hexadecimal digits that tell this machine from others and name nothing of it.

    Of the host's name, the system's identifier and the processor: in containers, each alone may be shared. Containers
    of one machine differ in their names; ``FUZZCOMPILE_MACHINE``, such as the node's name, tells that they are one.
    """
    if named := os.environ.get("FUZZCOMPILE_MACHINE"):
        return hashlib.sha256(named.encode()).hexdigest()[:8]
    identifier = _try_or_none(lambda: Path("/etc/machine-id").read_text()) or ""
    processor: str | None = _try_or_none(_read_cpu_model)
    told = "\n".join((platform.node(), identifier.strip(), processor or ""))
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _read_driver(device: str) -> str | None:
    """The driver's version, according to the kernel module where there is no nvidia-smi, as in many containers."""
    del device
    told = _try_or_none(lambda: _read_first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"))
    if told:
        return told
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    return match[0] if match else None


_GPU_FACTS: Mapping[str, Callable[[str], JSON]] = {
    "device_name": lambda device: torch.cuda.get_device_name(device),
    "device_capability": lambda device: ".".join(map(str, torch.cuda.get_device_capability(device))),
    "device_count": lambda device: torch.cuda.device_count(),
    "driver": _read_driver,
}


def _find_triton_version() -> str | None:
    # importing triton costs a second; "pytorch-triton" is its name in torch's own nightly wheels
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _read_cpu_model() -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _read_first_line(*command: str) -> str:
    done = capture_output(command, seconds=20)
    done.check_returncode()
    return done.stdout.splitlines()[0].strip()


def _try_or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:  # a version that cannot be read must not cost the report that it would stand in
        return None


# Messages of torch's allocators in a plain RuntimeError.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "CUDA out of memory")


@contextlib.contextmanager
def convert_memory_errors() -> Iterator[None]:
    """Turn every exception that stands for exhausted memory into a MemoryError."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # re-raised unless it stands for exhausted memory
        if not is_exhausted_memory(error):
            raise
        raise MemoryError(shorten_message(error)) from error


def is_exhausted_memory(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__
    return False


_LONGEST_MESSAGE = 300


def shorten_message(error: BaseException) -> str:
    """The first line of an exception's message and a C++ compiler's first error in it: at most 300 characters."""
    text = str(error)
    found = _COMPILER_ERROR.search(text)
    told = cut_message(text)
    return (cut_message(f"{told}: {found[1]}") if found and found[1] not in told else told) or type(error).__name__


# As g++, clang++ and nvcc write it: file, line, column, and what is wrong there.
_COMPILER_ERROR = re.compile(r"^\S+?:\d+:\d+: (?:fatal )?error: (.+)$", re.MULTILINE)
# What torch appends to messages that its own checks were given none for.
_ASKING = "(Could this error message be improved?"


def cut_message(text: str) -> str:
    """The first line of a message, at most 300 characters of whole words."""
    first = next(iter(text.strip().splitlines()), "").partition(_ASKING)[0].rstrip()
    return first if len(first) <= _LONGEST_MESSAGE else f"{first[:_LONGEST_MESSAGE].rpartition(' ')[0]} ..."


def describe_run_error(error: BaseException) -> str:
    """The type of an exception and the first line of its message, at most 300 characters of that."""
    return f"{type(error).__name__}: {shorten_message(error)}"


# Memory of the process from which on giving some of it back is worth the milliseconds, in bytes.
_LEAST_BYTES = 2**30


@functools.cache
def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # a system whose programs cannot be opened as a library
        return None


def trim_memory() -> None:
    """Give freed memory back to the system, as a worker is measured by what it holds; only glibc can be asked to."""
    trim = _find_malloc_trim()
    if trim is not None and psutil.Process().memory_info().rss >= _LEAST_BYTES:
        trim(0)


def find_gpu_error(device: torch.device) -> str | None:
    """The error that ``device`` answers every call of this process with; None while it works, and for other devices.

    After an assertion in a kernel or an illegal address every call fails until the process ends.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return shorten_message(error)
    return None


def wait_for_kernels(values: object) -> None:
    """Wait for the kernels that the tensors among ``values`` come from, and raise their errors.

    Raises:
        RuntimeError: a kernel failed; without waiting a later call would raise that.
    """
    for device in {tensor.device for tensor in list_tensors(values) if tensor.is_cuda}:
        torch.cuda.synchronize(device)


# The regions of `torch.autocast` around a call, which surround each run of it again.

AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class AutocastRegions:
    """The regions entered, as the arguments of `torch.autocast`; none by default."""

    regions: tuple[tuple[str, torch.dtype, bool, bool], ...] = ()

    @classmethod
    def current(cls) -> AutocastRegions:
        """Those of now."""
        cached = torch.is_autocast_cache_enabled()
        entered = [name for name in AUTOCAST_DEVICES if torch.is_autocast_enabled(name)]
        return cls(tuple((name, torch.get_autocast_dtype(name), True, cached) for name in entered))

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Enter the regions for the block."""
        with contextlib.ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(torch.autocast(*region))
            yield
