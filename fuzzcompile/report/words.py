"""The tables of words that reports, pages and searches are made of (``words.toml``)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
