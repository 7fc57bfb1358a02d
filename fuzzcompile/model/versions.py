"""The versions of fuzzcompile and of the installed torch, and the folder of the package."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).parents[1]
"""The folder of the package; its parent is what ``PYTHONPATH`` needs."""

_VERSION = re.compile(r"""^__version__\s*(?::[^=]*)?=\s*["']([^"']+)["']""", re.MULTILINE)


@functools.cache
def installed_torch() -> str:
    """The version of the installed torch, such as ``2.13.0+cpu``, from its file of it; empty where there is none."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            with open(f"{folder}/version.py", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not needed for it
                match = _VERSION.search(file.read())
        except OSError:
            continue
        if match is not None:
            return match[1]
    return ""
