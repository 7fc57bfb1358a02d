"""Precompiled C++ headers, which workers share as they share kernels.

Inductor precompiles the header of its kernels (6 s of g++, 150 MB) before it loads the first one, into the folder for
temporary files. A worker has a folder of its own there, so that each worker would precompile the header anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from fuzzcompile.compiler.kernel_cache import HEADERS_VARIABLE


def share_headers() -> None:
    """Link the headers beside the kernel cache into this process's folder, and publish those that it finished.

    Those that plain torch of the same user has finished are linked as well, so that an empty kernel cache costs none.

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
        for header in _missing(own, shared):
            _publish(own / header, shared / header)
        for source in (shared, Path(os.environ.get(HEADERS_VARIABLE, shared))):
            for header in _missing(source, own):
                own.mkdir(parents=True, exist_ok=True)
                (own / header).symlink_to(source / header)


def _missing(source: Path, target: Path) -> list[str]:
    """Finished headers of ``source`` that ``target`` lacks; the compiler keeps a build folder until one is finished."""
    headers = [path for path in source.glob("*.gch") if not path.with_name(f"{path.stem}_CxxBuild").exists()]
    return [path.name for path in headers if not (target / path.name).exists()]


def _publish(header: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(header, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
