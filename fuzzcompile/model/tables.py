"""Tables that packages of fuzzcompile hold as TOML."""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """The table ``name.toml`` beside the modules of a ``package``."""
    return tomllib.loads((importlib.resources.files(package) / f"{name}.toml").read_text("utf-8"))
