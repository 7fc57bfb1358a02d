"""Functions for a worker by their names, so that a process which only submits them need not import their modules."""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Any

_VERSION = re.compile(r"""^__version__\s*(?::[^=]*)?=\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Named:
    """The function ``module:name``, imported where and when it is called."""

    name: str

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function."""
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


def installed_torch() -> str:
    """The version of the installed torch, read from its file of versions without importing it.

    Returns:
        The version, such as ``2.13.0+cpu``; an empty string if there is no torch, or it has no such file.
    """
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
