"""Near misses of a program, each as plain data that can be made again on a program that was edited before."""

from __future__ import annotations

from dataclasses import dataclass

Argument = str | int | float | bool


@dataclass(frozen=True)
class Edit:
    """One near miss: the name of its kind, and where and how (see `fuzzcompile.generation.patterned.kinds`)."""

    name: str
    arguments: tuple[Argument, ...] = ()
