"""Functions for a worker by their names, so that a process which only submits them need not import their modules."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Named:
    """The function ``module:name``, imported where and when it is called."""

    name: str

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function."""
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)
