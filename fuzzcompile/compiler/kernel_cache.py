"""Where Inductor keeps compiled kernels, for processes with a temporary folder of their own."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from pathlib import Path

from fuzzcompile.errors import EnvironmentUnfit

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# A kernel is smaller, but on a disk with less than that nothing compiles for long.
_LEAST_BYTES = 2**20


def shared_kernel_cache() -> dict[str, str]:
    """The environment variable that makes a child process share this process's kernel cache, whatever its TMPDIR.

    The folder is that of ``torch._inductor.runtime.cache_dir_utils.default_cache_dir``, which is not called because
    importing it takes seconds.

    Raises:
        EnvironmentUnfit: the folder cannot be written; torch cannot even be imported then.
    """
    try:
        folder = Path(os.environ.get(_VARIABLE) or Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b" " * _LEAST_BYTES)
    except OSError as error:
        raise EnvironmentUnfit(
            f"torch.compile cannot keep its kernels ({error.strerror}: {error.filename or folder}); make room, or "
            f"point {_VARIABLE} at a folder that can be written."
        ) from error
    return {_VARIABLE: str(folder)}


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)
