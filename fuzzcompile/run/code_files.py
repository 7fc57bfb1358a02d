"""Files of code: whose a file is (the program's own, a library's, torch's, Python's, ours), and its name in reports."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from fuzzcompile.model.versions import PACKAGE

INSTALLED = ("site-packages", "dist-packages")
"""Folders that libraries are installed into."""
Owner = Literal["program", "library", "torch", "python", "fuzzcompile"]
_TORCH = Path(torch.__file__).parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
# Files between a call in the program and what sees it.
_BETWEEN = (
    *("torch/overrides.py", "torch/_tensor.py", "torch/_ops.py", "torch/utils/", "torch/_jit_internal.py"),
    *("torch/_compile.py", "torch/_dynamo/", "torch/_decomp/", "torch/_refs/", "torch/_prims"),
)


@functools.lru_cache(maxsize=4096)
def find_owner(file: str) -> Owner:
    """Whose code a file holds; that of a file which is nowhere, as ``<string>``, is the program's."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return "fuzzcompile"
    if path.is_relative_to(_TORCH):
        return "torch"
    if any(folder in path.parts for folder in INSTALLED):  # it may lie in the folder of Python's own library
        return "library"
    python = file.startswith("<frozen") or path.is_relative_to(_STANDARD_LIBRARY)
    return "python" if python else "program"


@functools.lru_cache(maxsize=1024)
def shorten_file(file: str) -> str:
    """A file relative to the folder that holds torch (``torch/_inductor/lowering.py``); of any other, its name."""
    path = Path(file)
    return path.relative_to(_TORCH.parent).as_posix() if path.is_relative_to(_TORCH.parent) else path.name


def get_module_file(module: str) -> str:
    """The file of a module of torch, as :func:`shorten_file` gives it."""
    return f"{module.replace('.', '/')}.py"


def is_user_file(filename: str) -> bool:
    """Return whether this is a file of Python of the program's own."""
    return filename.endswith(".py") and find_owner(filename) == "program"


def iter_program_lines() -> Iterator[str]:
    """``file.py:line`` of the callers under way, innermost first, as dynamo gives them: modules of torch included.

    Ends where our own code drives the program. A module of ours whose frames stand between the program and what asks
    for its line has a global ``__watches_calls__``.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, module = Path(frame.f_code.co_filename).as_posix(), frame.f_globals
        if not module.get("__watches_calls__") and not any(part in path for part in _BETWEEN):
            if find_owner(frame.f_code.co_filename) == "fuzzcompile":
                return
            yield f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
