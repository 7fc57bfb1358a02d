"""The idioms: one unit a role, each registering its own, the simplest first."""

from __future__ import annotations

from fuzzcompile.fuzz.idioms import transformer
from fuzzcompile.fuzz.idioms.registry import Idiom, idiom, idioms

__all__ = ["Idiom", "idiom", "idioms", "transformer"]
