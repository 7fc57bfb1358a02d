"""The C++ compiler that Inductor calls on the CPU: where it is, and whether it works. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL = "install g++ (for example `apt-get install g++`) or point CXX at a C++ compiler"
_REMEDY = "mend it, make room in the folder for temporary files, or point CXX at another C++ compiler"
_SECONDS = 60
# What every kernel needs: the standard library, position-independent code, and a linker.
_PROGRAM = (
    '#include <algorithm>\n#include <cmath>\nextern "C" float probe(float x) { return std::max(std::exp(x), x); }\n'
)


def cxx_compiler() -> Path | None:
    """The C++ compiler that Inductor calls: ``$CXX``, or g++ (clang++ on macOS). None if it isn't there."""
    default = "clang++" if platform.system() == "Darwin" else "g++"
    path = shutil.which(os.environ.get("CXX") or default)
    return Path(path) if path else None


def toolchain_fault() -> str | None:
    """What keeps this machine from making a shared library of a few lines of C++; None if nothing does.

    Takes half a second. The library goes into a folder for temporary files, which may be full.
    """
    compiler = cxx_compiler()
    if compiler is None:
        return f"there is no C++ compiler; {INSTALL}"
    try:
        with tempfile.TemporaryDirectory(prefix="fuzzcompile-", ignore_cleanup_errors=True) as folder:
            source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
            source.write_text(_PROGRAM, encoding="utf-8")
            done = subprocess.run(
                [str(compiler), "-shared", "-fPIC", str(source), "-o", str(library)],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{compiler} cannot be tried ({reason}); {_REMEDY}"
    return (
        None if done.returncode == 0 else f"{compiler} fails on a tiny program ({_complaint(done.stderr)}); {_REMEDY}"
    )


def _complaint(output: str) -> str:
    """The line of a compiler's output that says what is wrong: the first error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "cannot find" in line]
    return (errors or lines[-1:] or ["it says nothing"])[0][:200]
