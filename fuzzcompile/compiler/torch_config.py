"""Settings of the compiler: its three configs, entries that switch passes, and options this torch has."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from torch.utils._config_module import ConfigModule

from fuzzcompile.compiler.watch.torch_patch import Function, UnseenRecorder
from fuzzcompile.model.facts import facts

# The three configs of the compiler, and the entries they have.

CONFIGS: Mapping[str, str] = {
    "inductor": "torch._inductor.config",
    "dynamo": "torch._dynamo.config",
    "functorch": "torch._functorch.config",
}
"""The module of each config, by the name that settings and reports use."""


def load_config(name: str) -> ConfigModule:
    """The config called ``inductor``, ``dynamo`` or ``functorch``."""
    return cast(ConfigModule, importlib.import_module(CONFIGS[name]))


def has_entry(config: ConfigModule, key: str) -> bool:
    """Return whether a config has an entry; ``key`` may be dotted (``cpp.simdlen``)."""
    return _get_entry(config, key) is not MISSING


def _get_entry(config: Any, key: str) -> Any:
    return functools.reduce(lambda owner, part: getattr(owner, part, MISSING), key.split("."), config)


def patch_config(name: str, changes: Mapping[str, object]) -> contextlib.AbstractContextManager[None]:
    """Set those of the entries that this torch has for the time of a block."""
    config = load_config(name)
    present = {key: value for key, value in changes.items() if has_entry(config, key)}
    return config.patch(present) if present else contextlib.nullcontext()


@contextlib.contextmanager
def preserve_config() -> Iterator[None]:
    """Set every config back at the end of the block to what it was at its beginning."""
    with contextlib.ExitStack() as stack:
        # The public one has entries of which others have an alias, such as ``force_disable_caches``: no copy has these.
        for module in (*CONFIGS.values(), "torch.compiler.config"):
            config = cast(ConfigModule, importlib.import_module(module))
            stack.enter_context(config.patch(config.get_config_copy()))
        yield


def list_changed_entries(name: str) -> dict[str, object]:
    """The entries of a config that do not have torch's default; none of a config that nothing has imported yet."""
    if CONFIGS[name] not in sys.modules:
        return {}
    config = load_config(name)
    is_default = getattr(config, "_is_default", lambda key: False)
    return {key: value for key, value in config.get_config_copy().items() if not is_default(key)}


MISSING = object()
_CONFIGURED = (*CONFIGS.values(), "torch.fx.experimental._config", "torch._logging._internal")
# Its time says when a cache of kernels was last looked through for half-written ones.
_LOOKED = "fuzzcompile-looked-through"
_LONGEST_LINK = 600.0
_ELF_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")


def compile_in_process(threads: int = 1) -> None:
    """Keep Inductor's compile jobs in this process, unless the user set another number of threads.

    A pool of compile workers of its own would outlive time limits and multiply with ours. More than one thread, each
    with a C++ compiler, is only for the CPU: it means processes to Triton.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        import torch._inductor.config as inductor_config

        inductor_config.compile_threads = threads
        os.environ["TORCH_WARM_POOL"] = "0"


def find_import_variables(names: Iterable[str]) -> list[str]:
    """Those of the environment variables that a configuration module of torch names, and so reads once, on import."""
    found = (importlib.util.find_spec(module) for module in _CONFIGURED)
    sources = [Path(spec.origin).read_text(encoding="utf-8") for spec in found if spec is not None and spec.origin]
    return sorted(name for name in names if any(f'"{name}"' in source for source in sources))


def get_setting(key: str, config: str = "inductor") -> Any:
    """The present value of an entry of a config of torch's (``cpp.simdlen``); ``MISSING`` if there is none."""
    return _get_entry(load_config(config), key)


def skip_guard_timing(watcher: UnseenRecorder, original: Function, *args: object) -> float:
    """Do without the measurement of how long dynamo's guards take, which flushes the processor's caches: 20 ms each."""
    return 0.0


def drop_broken_kernels() -> list[str]:
    """Delete half-written shared objects from Inductor's kernel cache and return their names.

    A worker killed while the linker writes leaves a truncated library behind, and every later case that needs this
    kernel would fail with "file too short". A file whose lock is held is still being written. Old files are not looked
    at again: the cache may hold tens of thousands.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.utils._filelock import FileLock

    folder = Path(cache_dir())
    dropped: list[str] = []
    for path in _find_recent_libraries(folder):
        if _is_complete(path):
            continue
        lock = FileLock(str(folder / "locks" / f"{path.name.split('.')[0]}.lock"), timeout=0)
        with contextlib.suppress(OSError, TimeoutError, RuntimeError), lock:
            path.unlink(missing_ok=True)
            dropped.append(path.name)
    return dropped


def _find_recent_libraries(folder: Path) -> list[Path]:
    """The shared objects written since the cache was last looked through, or not long before: links take a while."""
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
    *_, section_offset, _, _, _, _, entry_size, entries, _ = _ELF_HEADER.unpack(header)
    return bool(section_offset + entry_size * entries <= size)


# Options of the compiler that the installed torch has, down to the passes that its fusion options name.


def find_unknown_options(options: Mapping[str, object], config: str | None = None) -> tuple[str, ...]:
    """The entries of a config, Inductor's if none is named, and the passes named in them, that this torch lacks."""
    unknown = [key for key in options if get_setting(key, config or "inductor") is MISSING]
    fusions = facts().fusions
    for stage in fusions.patterns:
        key, known = fusions.get_option(stage), set[str]()
        for place in (fusions.patterns[stage], fusions.rules[stage]):
            with contextlib.suppress(ImportError, AttributeError):
                known.update(pkgutil.resolve_name(place))
        asked = options.get(key) if key is not None else None
        unknown += [f"{key}:{name}" for name in (asked if isinstance(asked, Mapping) else ()) if name not in known]
    return tuple(unknown)


# Settings of ``torch._inductor.config`` that switch passes or change numbers, and what they are set to.

_NAME = re.compile(r"\bconfig\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_LONGEST = 60


def list_toggles(conditions: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str, str, str, bool]]:
    """Stage, name, value, default (as source) of settings that conditions of passes or facts name; if they differ."""
    entries: Mapping[str, object] = getattr(load_config("inductor"), "_config", {})
    listed = facts().settings.listed
    seen = set[str]()
    for stage in dict.fromkeys((*conditions, *listed)):
        guarding = [name for text in sorted(conditions.get(stage, ())) for name in _NAME.findall(text)]
        for name in (*listed.get(stage, ()), *guarding):
            if name not in entries or name in seen:
                continue
            seen.add(name)
            value, default = get_setting(name), getattr(entries[name], "default", None)
            yield stage, f"config.{name}", _format_value(value), _format_value(default), value != default


def _format_value(value: object) -> str:
    text = getattr(value, "__name__", None) if callable(value) else repr(value)
    text = " ".join((text or type(value).__name__).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
