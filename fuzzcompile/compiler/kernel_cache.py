"""Inductor's kernel cache: its location, the linker, precompiled headers, and the first queries of the toolchain."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.subprocesses import find_cxx_compiler

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# A kernel is smaller, but on a disk with less than that nothing compiles for long.
_LEAST_BYTES = 2**20
#: Names the folder in which plain torch keeps precompiled headers (:mod:`fuzzcompile.compiler.kernel_cache`).
HEADERS_VARIABLE = "FUZZCOMPILE_HEADERS"


def share_kernel_cache() -> dict[str, str]:
    """The environment variables by which a child process shares this one's kernels, headers and linker."""
    # As ``torch._inductor.runtime.cache_dir_utils.default_cache_dir`` has it, whose import takes seconds.
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ModuleNotFoundError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    default = Path(tempfile.gettempdir(), f"torchinductor_{user}")
    kernels = Path(os.environ.get(_VARIABLE) or default)
    try:
        kernels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=kernels) as probe:
            probe.write(b" " * _LEAST_BYTES)
    except OSError as error:
        raise EnvironmentUnfit(
            f"torch.compile cannot keep its kernels in {kernels} ({error.strerror}); make room, or point {_VARIABLE} "
            "at a folder that can be written."
        ) from error
    headers = os.environ.get(HEADERS_VARIABLE) or str(default / "precompiled_headers")
    return {_VARIABLE: str(kernels), HEADERS_VARIABLE: headers, **share_linker(kernels), **_clang_options()}


# Libraries without a symbol, of the names of torch's, which kernels are linked to.

_COMPILER_PATH = "COMPILER_PATH"
_LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
_BUILD_SECONDS = 60.0
# What is linked names them, though it needs none of their symbols; a program, which does need them, has the real ones.
_LINKER = """#!/bin/sh
case " $* " in
*" -shared "*) ;;
*) exec {linker} "$@" ;;
esac
for argument; do
    shift
    [ "$argument" = --as-needed ] || set -- "$@" "$argument"
done
exec {linker} -L{folder} "$@"
"""


def share_linker(cache: Path) -> dict[str, str]:
    """The environment variables by which kernels are linked to empty libraries, kept in the folder ``cache``.

    Reading torch's own is a third of a kernel's compile (bench/linking.py); where a kernel is loaded, they are in the
    process under the same names. The compiler looks for its linker where these variables say: its flags stay as they
    are, and with them the names of kernels in the cache. There are none where this machine's tools are others.
    """
    linker, compiler = shutil.which("ld"), find_cxx_compiler()
    if sys.platform != "linux" or linker is None or compiler is None or _COMPILER_PATH in os.environ:
        return {}
    kept = cache / f"linker-{hashlib.sha256(f'{linker} {compiler} {_LINKER}'.encode()).hexdigest()[:12]}"
    try:
        if not kept.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as made:
                _fill_linker_folder(Path(made, kept.name), kept, linker, compiler)
                Path(made, kept.name).rename(kept)
    except (OSError, subprocess.SubprocessError):  # kernels are linked as ever, or another process was first
        pass
    return {_COMPILER_PATH: str(kept)} if kept.exists() else {}


def _fill_linker_folder(folder: Path, kept: Path, linker: str, compiler: Path) -> None:
    folder.mkdir()
    for name in _LIBRARIES:
        options = ["-shared", f"-Wl,-soname,{name}", "-x", "c++", os.devnull, "-o", str(folder / name)]
        subprocess.run([compiler, *options], check=True, capture_output=True, timeout=_BUILD_SECONDS)
    script = folder / "ld"
    script.write_text(_LINKER.format(linker=linker, folder=shlex.quote(str(kept))), encoding="utf-8")
    script.chmod(0o755)


# Precompiled C++ headers, which workers share as they share kernels.

_HEADER_SUFFIXES = (".gch", ".pch")  # g++'s and clang++'s
# Read by clang's driver: "#" for silence, "+" before an option that it adds.
_CLANG_VARIABLE = "CCC_OVERRIDE_OPTIONS"
_CLANG_OPTIONS = "+-fpch-instantiate-templates +-Xclang +-fno-validate-pch"


def _clang_options() -> dict[str, str]:
    """The environment variable by which clang++ keeps instantiated templates in a precompiled header, for all to use.

    Without it every kernel instantiates the header's templates again, which is most of its compile (reports/phases.md),
    as it is with g++, which has no such option; and a header is refused where the folder that it was made in is gone.
    Its name changes with its preprocessed text, so that nothing else has to be validated.
    """
    compiler, given = find_cxx_compiler(), os.environ.get(_CLANG_VARIABLE) or "#"
    if compiler is None or "clang" not in compiler.name or _CLANG_OPTIONS in given:  # Inductor goes by the name, too
        return {}
    return {_CLANG_VARIABLE: f"{given} {_CLANG_OPTIONS}"}


def share_headers() -> None:
    """Link the headers beside the kernel cache into this process's folder, and publish those that it finished.

    The compiler writes a header in place, and a killed worker leaves half of one. A header is therefore finished in a
    worker's own folder and copied under its name in one step. Without effect where both folders are the same.
    """
    import torch._inductor.codecache as codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = getattr(codecache, "_HEADER_DIR", None)  # a torch without it precompiles no headers
    if folder is None:
        return
    own, shared = Path(folder), Path(cache_dir(), "precompiled_headers")
    if own == shared:
        return
    with contextlib.suppress(OSError):  # a full disk or a race with another worker costs time and nothing else
        for link in _find_headers(own):
            if not link.exists():  # it leads to a cache that was deleted: the compiler would write through it
                link.unlink(missing_ok=True)
        for header in _find_missing_headers(own, shared):
            shared.mkdir(parents=True, exist_ok=True)
            draft = shared / f"{header}.{os.getpid()}"
            try:
                shutil.copyfile(own / header, draft)
                draft.replace(shared / header)
            finally:
                draft.unlink(missing_ok=True)
        for source in (shared, Path(os.environ.get(HEADERS_VARIABLE, shared))):
            for header in _find_missing_headers(source, own):
                own.mkdir(parents=True, exist_ok=True)
                (own / header).symlink_to(source / header)


def _find_missing_headers(source: Path, target: Path) -> list[str]:
    """Finished headers of ``source`` that ``target`` lacks; the compiler keeps a build folder until one is finished."""
    headers = [path for path in _find_headers(source) if not path.with_name(f"{path.stem}_CxxBuild").exists()]
    return [path.name for path in headers if path.exists() and not (target / path.name).exists()]


def _find_headers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.suffix in _HEADER_SUFFIXES]


# Inductor's queries of the C++ toolchain before its first kernel, run while a worker is still importing.

# Needs the vector instructions and the header; it is never compiled.
_KERNEL = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(const float* in_ptr0) { at::vec::Vectorized<float>::loadu(in_ptr0); }
"""


@contextlib.contextmanager
def prepare_toolchain(*, wanted: bool) -> Iterator[None]:
    """Look at it in a thread during the block, if that is wanted; the block ends when both have."""
    # Imported here: two threads that import modules which import each other may see half of one.
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa

    assert cpp_builder and cpu_vec_isa
    load = getattr(getattr(codecache, "CppPythonBindingsCodeCache", None), "load_pybinding_async", None)
    if not wanted or load is None:
        yield
        return
    share_headers()

    def query() -> None:
        # Whatever goes wrong (there is no compiler, this torch asks in another way) shows when a kernel is compiled.
        with contextlib.suppress(Exception):
            load(["const float*"], _KERNEL, submit_fn=lambda compile_it: None)

    thread = threading.Thread(target=query, name="toolchain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
