"""What a result depends on besides the case: torch, device, driver, compiler, CPU.

The description goes into public issues, so it names no host, user or folder.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch

from fuzzcompile.run.toolchain import cxx_compiler

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

T = TypeVar("T")


def describe(device: torch.device, target: str | None = None) -> dict[str, JSON]:
    """Describe the environment of results on ``device``. Never raises: unknown entries are None.

    ``target`` names the device that the compiler was told, if that is another one.
    """
    told: dict[str, JSON] = {} if target is None else {"target": target}
    return copy.deepcopy(_describe(str(device))) | told


@functools.cache
def _describe(device: str) -> dict[str, JSON]:
    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": _or_none(_triton_version),
        "device": device,
        **_gpu(torch.device(device)),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libc": _or_none(lambda: " ".join(platform.libc_ver()).strip() or None),
        "cpu": _or_none(_cpu_model),
        "cpu_capability": _or_none(torch.backends.cpu.get_cpu_capability),
        "machine": machine(),
        "cpu_count": _or_none(lambda: len(os.sched_getaffinity(0))),
        "threads": torch.get_num_threads(),
        "cxx": _or_none(_cxx_version),
    }


@functools.cache
def machine() -> str:
    """Eight hexadecimal digits that tell this machine from others and name nothing of it.

    Of the host's name, the system's identifier and the processor: in containers, each alone may be shared. Containers
    of one machine differ in their names; ``FUZZCOMPILE_MACHINE``, such as the node's name, tells that they are one.
    """
    if named := os.environ.get("FUZZCOMPILE_MACHINE"):
        return hashlib.sha256(named.encode()).hexdigest()[:8]
    identifier = _or_none(lambda: Path("/etc/machine-id").read_text()) or ""
    processor: str | None = _or_none(_cpu_model)
    told = "\n".join((platform.node(), identifier.strip(), processor or ""))
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _gpu(device: torch.device) -> dict[str, JSON]:
    if device.type != "cuda":
        return {"device_name": None, "device_capability": None, "device_count": None, "driver": None}
    return {
        "device_name": _or_none(lambda: torch.cuda.get_device_name(device)),
        "device_capability": _or_none(lambda: ".".join(map(str, torch.cuda.get_device_capability(device)))),
        "device_count": _or_none(torch.cuda.device_count),
        "driver": _or_none(_nvidia_smi_driver) or _or_none(_kernel_driver),
    }


def _nvidia_smi_driver() -> str | None:
    reply = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return reply.splitlines()[0].strip() or None


def _kernel_driver() -> str | None:
    """The driver's version according to the kernel module; containers often lack nvidia-smi."""
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    return match[0] if match else None


def _triton_version() -> str | None:
    # importing triton costs a second; "pytorch-triton" is its name in torch's own nightly wheels
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cpu_model() -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _cxx_version() -> str | None:
    compiler = cxx_compiler()
    return None if compiler is None else _output(str(compiler), "--version").splitlines()[0].strip()


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:  # a version that cannot be read must not cost the report that it would stand in
        return None
