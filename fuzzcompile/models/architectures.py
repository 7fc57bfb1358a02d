"""The bundled configurations, by the names that users know them by."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuzzcompile.errors import UsageError

_TIMM = "timm/"


@dataclass(frozen=True)
class Architecture:
    """One entry of ``table.toml``, which explains its fields.

    Attributes:
        config: the configuration class of transformers; empty for a model of timm.
        model: the model class of transformers, or the name that timm builds it by.
        unlabelled: the model takes no labels in training.
        image: height and width of the images of a model that does not name them in its configuration, in pixels.
    """

    name: str
    published: Mapping[str, object]
    narrow: Mapping[str, object]
    tiny: Mapping[str, object]
    config: str = ""
    model: str = ""
    inputs: str = "seen"
    unlabelled: bool = False
    image: int = 224
    aliases: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The library that defines it: ``transformers`` or ``timm``."""
        return "transformers" if self.config else "timm"


@functools.cache
def _table() -> dict[str, Architecture]:
    text = importlib.resources.files(__package__).joinpath("table.toml").read_text(encoding="utf-8")
    return {name: _entry(name, entry) for name, entry in tomllib.loads(text).items()}


def _entry(name: str, entry: dict[str, Any]) -> Architecture:
    return Architecture(
        name, **{"model": name.removeprefix(_TIMM), **entry, "aliases": tuple(entry.get("aliases", ()))}
    )


def names() -> tuple[str, ...]:
    """The names of all bundled configurations, transformers' first."""
    return tuple(_table())


def architecture(name: str) -> Architecture:
    """The architecture that ``name`` names: as in the table or an alias, in any case, with or without the hub's owner.

    Raises:
        UsageError: there is none; the message lists close names.
    """
    known = {spelling.lower(): each for each in _table().values() for spelling in (each.name, *each.aliases)}
    wanted = name.lower()
    for spelling in (wanted, wanted.rpartition("/")[2]):
        if spelling in known:
            return known[spelling]
    close = dict.fromkeys(known[match].name for match in difflib.get_close_matches(wanted, known, n=5, cutoff=0.5))
    hint = f"close ones are {', '.join(close)}" if close else f"there are {', '.join(_table())}"
    raise UsageError(f"--hf-config knows no {name!r}: {hint}; load any other model in a script and give that.")
