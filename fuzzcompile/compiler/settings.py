"""Settings of the compiler that hold for a whole worker process, and the state of its kernel cache."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzzcompile.compiler.configs import config_of, has_entry
from fuzzcompile.compiler.patching import Function, Watcher

MISSING = object()
_CONFIGURED = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
    "torch._logging._internal",
)
# Its time says when a cache of kernels was last looked through for half-written ones.
_LOOKED = "fuzzcompile-looked-through"
_LONGEST_LINK = 600.0
_ELF_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")


def compile_in_process(threads: int = 1) -> None:
    """Keep Inductor's compile jobs in this process, unless the user set another number of threads.

    A pool of compile workers of its own would outlive time limits and multiply with ours.

    Args:
        threads: how many C++ compilers may run at a time. Only for the CPU: more than one thread means processes to
            Triton.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        import torch._inductor.config as inductor_config

        inductor_config.compile_threads = threads
        os.environ["TORCH_WARM_POOL"] = "0"


def read_at_import(names: Iterable[str]) -> list[str]:
    """Those of the environment variables that torch reads once, when its configuration is imported.

    They are those that the source of a configuration module names; what torch reads where it uses it is in others.
    """
    found = (importlib.util.find_spec(module) for module in _CONFIGURED)
    sources = [Path(spec.origin).read_text(encoding="utf-8") for spec in found if spec is not None and spec.origin]
    return sorted(name for name in names if any(f'"{name}"' in source for source in sources))


def setting(key: str) -> Any:
    """The present value of an entry of ``torch._inductor.config`` (``cpp.simdlen``); ``MISSING`` if there is none."""
    config = config_of("inductor")
    return functools.reduce(getattr, key.split("."), config) if has_entry(config, key) else MISSING


def wrap_guard_timing(watcher: Watcher, original: Function) -> Function:
    """Do without the measurement of how long dynamo's guards take, which flushes the processor's caches: 20 ms each."""
    return lambda *args: 0.0


def drop_broken_kernels() -> list[str]:
    """Delete half-written shared objects from Inductor's kernel cache and return their names.

    The linker's output is not moved into place: a worker killed in the middle leaves a truncated library
    behind, and every later case that needs this kernel would fail with "file too short", which looks like a
    bug of the compiler. A file whose lock is held is still being written. Files that were old when the cache was
    looked through before are not looked at again: it may hold tens of thousands.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.utils._filelock import FileLock

    folder = Path(cache_dir())
    dropped: list[str] = []
    for path in _recent_libraries(folder):
        if _is_complete(path):
            continue
        lock = FileLock(str(folder / "locks" / f"{path.name.split('.')[0]}.lock"), timeout=0)
        try:
            with lock:
                path.unlink(missing_ok=True)
                dropped.append(path.name)
        except (OSError, TimeoutError, RuntimeError):
            continue
    return dropped


def _recent_libraries(folder: Path) -> list[Path]:
    """The shared objects written since the cache was last looked through, or not long before: links may take a while.

    The time of that is the time of a file in the cache.
    """
    looked = folder / _LOOKED
    try:
        since = looked.stat().st_mtime - _LONGEST_LINK
    except OSError:
        since = 0.0
    recent: list[Path] = []
    with contextlib.suppress(OSError):  # there is no cache yet
        looked.touch()
        for entry in [*os.scandir(folder)]:
            with contextlib.suppress(OSError):  # another process empties the cache
                if entry.is_dir() and entry.stat().st_mtime >= since:
                    libraries = (file for file in os.scandir(entry) if file.name.endswith(".so"))
                    recent += [Path(file.path) for file in libraries if file.stat().st_mtime >= since]
    return recent


def _is_complete(path: Path) -> bool:
    """Return whether the file is an ELF object that ends with its section headers, which the linker writes last."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            header = stream.read(_ELF_HEADER.size)
    except OSError:
        return True
    if size < _ELF_HEADER.size or header[:4] != b"\x7fELF":
        return False
    fields = _ELF_HEADER.unpack(header)
    section_offset, entry_size, entries = fields[11], fields[16], fields[17]
    return bool(section_offset + entry_size * entries <= size)
