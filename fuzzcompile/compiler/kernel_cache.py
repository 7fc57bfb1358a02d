"""Location of Inductor's compiled kernels, for processes with a temporary folder of their own."""

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
#: Names the folder in which plain torch keeps precompiled headers (:mod:`fuzzcompile.compiler.headers`).
HEADERS_VARIABLE = "FUZZCOMPILE_HEADERS"


def shared_kernel_cache() -> dict[str, str]:
    """The environment variables by which a child process shares this process's kernels and headers, whatever TMPDIR.

    The folder is that of ``torch._inductor.runtime.cache_dir_utils.default_cache_dir``, which is not called because
    importing it takes seconds. Plain torch keeps precompiled headers there, wherever the user has kernels kept.

    Raises:
        EnvironmentUnfit: kernels cannot be kept there; torch cannot even be imported then.
    """
    default = Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    kernels = Path(os.environ.get(_VARIABLE) or default)
    _require_room(kernels)
    headers = os.environ.get(HEADERS_VARIABLE) or str(default / "precompiled_headers")
    return {_VARIABLE: str(kernels), HEADERS_VARIABLE: headers}


def _require_room(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b" " * _LEAST_BYTES)
    except OSError as error:
        raise EnvironmentUnfit(
            f"torch.compile cannot keep its kernels in {folder} ({error.strerror}); make room, or point {_VARIABLE} "
            "at a folder that can be written."
        ) from error


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)
