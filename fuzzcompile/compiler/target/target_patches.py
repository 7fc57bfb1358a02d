"""Kernels of a target's operators, and its device guard."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.subprocesses import capture_output

# Kernels of ATen that a process which compiles for a target has besides torch's own, until it ends.


_open_library = functools.cache(functools.partial(torch.library.Library, "aten", "IMPL"))


def register_kernel(operator: str, kernel: Callable[..., object], key: str) -> None:
    """Make ``kernel`` that of an ATen operator (``empty.memory_format``) for a dispatch key (``AutocastCPU``)."""
    library = _open_library()
    # Some versions of torch want to be told that a kernel may be replaced.
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        library.impl(operator, kernel, key, **override)  # type: ignore[no-untyped-call]


# A CUDA device guard for CPU builds of torch, where moving even a fake tensor to CUDA needs one.

_GUARD_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
static c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
"""


def build_guard() -> Path | None:
    """The library, built if need be (EnvironmentUnfit: it cannot be); None for a torch that has a guard of its own."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return None
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    key = hashlib.sha256(f"{torch.__version__}{torch.__file__}{_GUARD_SOURCE}".encode()).hexdigest()[:16]
    library = Path(cache_dir()) / "fuzzcompile" / f"cuda_guard_{key}.so"
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise EnvironmentUnfit(
            "A CPU build of torch needs a C++ compiler to be told of a CUDA device; install g++, or set CXX."
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    source = library.with_suffix(f".{os.getpid()}.cpp")
    draft = library.with_suffix(f".{os.getpid()}.so")
    source.write_text(_GUARD_SOURCE, encoding="utf-8")
    root = Path(torch.__file__).parent
    include = [f"-I{root / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    link = [f"-L{root / 'lib'}", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    command = [compiler, "-shared", "-fPIC", "-O0", "-std=c++20", *include, str(source), "-o", str(draft), *link]
    try:
        done = capture_output(command)
    finally:
        source.unlink(missing_ok=True)
    if done.returncode:
        line = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise EnvironmentUnfit(f"{compiler} cannot build the device guard that a target needs: {line}")
    return draft.replace(library)
