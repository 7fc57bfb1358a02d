"""Where Inductor keeps compiled kernels, for processes with a temporary folder of their own."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from pathlib import Path

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def shared_kernel_cache() -> dict[str, str]:
    """The environment variable that makes a child process share this process's kernel cache, whatever its TMPDIR.

    The folder is that of ``torch._inductor.runtime.cache_dir_utils.default_cache_dir``, which is not called because
    importing it takes seconds.
    """
    return {_VARIABLE: os.environ.get(_VARIABLE) or str(Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))}


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)
