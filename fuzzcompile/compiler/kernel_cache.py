"""Where Inductor keeps compiled kernels, for processes with a temporary folder of their own."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from pathlib import Path

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
#: Names the folder in which plain torch keeps precompiled headers (:mod:`fuzzcompile.compiler.headers`).
HEADERS_VARIABLE = "FUZZCOMPILE_HEADERS"


def shared_kernel_cache() -> dict[str, str]:
    """The environment variables by which a child process shares this process's kernels and headers, whatever TMPDIR.

    The folder is that of ``torch._inductor.runtime.cache_dir_utils.default_cache_dir``, which is not called because
    importing it takes seconds. Plain torch keeps precompiled headers there, wherever the user has kernels kept.
    """
    default = Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    return {
        _VARIABLE: os.environ.get(_VARIABLE) or str(default),
        HEADERS_VARIABLE: os.environ.get(HEADERS_VARIABLE) or str(default / "precompiled_headers"),
    }


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)
