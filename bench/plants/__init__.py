"""Planted bugs: known errors put into the installed torch for the time of a block, with the culprit each must get."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests"
# The plants of the tests are used here too, and so are their programs.
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
import planting  # noqa: E402, F401

Stages = tuple[str, ...]
nothing = contextlib.nullcontext


@dataclass(frozen=True)
class Expected:
    """The culprit that a bug must get.

    ``stages`` are those that are right, ``names`` the rewrites (without variant), operators or passes that are right,
    ``group`` what CompilerBisector calls the group that holds it, and ``further`` rewrites that must be named
    beside the culprit because each of them is needed too (the culprit may be any of ``names``).
    """

    stages: Stages
    names: tuple[str, ...]
    group: str | None = None
    further: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planted:
    """A bug: how it gets into torch, the case file that shows it, and what is to be found."""

    name: str
    install: Callable[[], AbstractContextManager[Any]]
    case: str | Path  # source, or a case file
    expected: Expected


@contextlib.contextmanager
def replaced(table: Any, key: Any, make: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """``table[key]`` is ``make(what it was)`` inside the block."""
    missing = object()
    kept = table.get(key, missing)
    table[key] = make(kept)
    try:
        yield
    finally:
        if kept is missing:
            del table[key]
        else:
            table[key] = kept


@contextlib.contextmanager
def patched(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """Attribute ``name`` of a module or class is ``make(what it was)`` inside the block; static methods stay so."""
    kept = owner.__dict__[name]
    static = isinstance(kept, staticmethod)
    made = make(kept.__func__ if static else kept)
    setattr(owner, name, staticmethod(made) if static else made)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def planted() -> list[Planted]:
    """All planted bugs, in the order of the stages that they are in."""
    from plants import before, behind, graphs

    return [*before.plants(), *graphs.plants(), *behind.plants()]
