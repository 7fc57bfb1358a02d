"""A CUDA device guard for CPU builds of torch, where moving even a fake tensor to CUDA needs one.

It is a few lines of C++ around ``c10::impl::FakeGuardImpl``, which does nothing; g++ takes some seconds for them, once
for each version of torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch

from fuzzcompile.errors import EnvironmentUnfit

_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
static c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
"""


def built() -> Path | None:
    """The library, built if it was not yet; None for a build of torch that has a guard of its own.

    Raises:
        EnvironmentUnfit: there is no C++ compiler, or it fails.
    """
    if torch.version.cuda is not None or torch.version.hip is not None:
        return None
    key = hashlib.sha256(f"{torch.__version__}{torch.__file__}{_SOURCE}".encode()).hexdigest()[:16]
    library = _folder() / f"cuda_guard_{key}.so"
    if not library.exists():
        _build(library)
    return library


def _folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fuzzcompile"


def _build(library: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise EnvironmentUnfit(
            "A CPU build of torch needs a C++ compiler to be told of a CUDA device; install g++, or set CXX."
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    source = library.with_suffix(f".{os.getpid()}.cpp")
    draft = library.with_suffix(f".{os.getpid()}.so")
    source.write_text(_SOURCE, encoding="utf-8")
    root = Path(torch.__file__).parent
    include = [f"-I{root / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    link = [f"-L{root / 'lib'}", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    command = [compiler, "-shared", "-fPIC", "-O0", "-std=c++20", *include, str(source), "-o", str(draft), *link]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        line = next((line for line in error.stderr.splitlines() if "error" in line), "no reason given")
        raise EnvironmentUnfit(f"{compiler} cannot build the device guard that a target needs: {line}") from error
    finally:
        source.unlink(missing_ok=True)
    draft.replace(library)
