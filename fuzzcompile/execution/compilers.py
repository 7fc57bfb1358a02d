"""The compilers that torch.compile itself calls. Needs no torch."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path


def cxx_compiler() -> Path | None:
    """The C++ compiler that Inductor calls: ``$CXX``, or g++ (clang++ on macOS). None if it isn't there."""
    default = "clang++" if platform.system() == "Darwin" else "g++"
    path = shutil.which(os.environ.get("CXX") or default)
    return Path(path) if path else None
