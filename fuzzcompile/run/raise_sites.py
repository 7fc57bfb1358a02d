"""Exceptions as they were raised: by whose code, by which kind of instruction, and with which classes and words."""

from __future__ import annotations

import dis
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from fuzzcompile.run.code_files import Owner, find_owner, shorten_file

# Modules that Inductor generates have names below its own.
_GENERATED = "torch._inductor."
# The name of the file of graphs that fx makes code of.
_GRAPH_FILE = "<eval_with_key>"
# Classes that all errors have in common, or that say nothing of what is wrong.
_COMMON = (Exception, BaseException, object)
# Errors of the compiler's own, which it raises in place of others; all of them are RuntimeErrors of Python.
_WRAPPING = ("torch._dynamo", "torch._inductor", "torch._functorch")

How = Literal["stated", "called", "implied"]
"""A ``raise`` or an ``assert``; a call of what is no Python, as an operator; any other instruction."""


@dataclass(frozen=True)
class RaiseSite:
    """The innermost Python frame that an error came from: the file, whose code it is, and how it was raised there."""

    file: str  # as `shorten_file` gives it
    owner: Owner | Literal["generated"]
    how: How


@dataclass(frozen=True)
class RaisedError:
    """One error of a chain of causes: its classes by name, its own first, and the first line of its message.

    The bases of a class of the compiler's own are left out: what it wraps may be of any kind.
    """

    classes: tuple[str, ...]
    message: str

    @property
    def name(self) -> str:
        """The name of the error's own class."""
        return self.classes[0]


def find_raise_site(error: BaseException) -> RaiseSite | None:
    """The place where an error was raised; None if no Python frame was passed."""
    found = next(reversed(list(traceback.walk_tb(error.__traceback__))), None)
    last = _find_last_instruction(error)
    if found is None or last is None:
        return None
    frame = found[0]
    file = frame.f_code.co_filename
    generated = is_generated(frame) or file.startswith(_GRAPH_FILE)
    return RaiseSite(shorten_file(file), "generated" if generated else find_owner(file), _name_way(frame, last))


def describe_errors(errors: Sequence[BaseException]) -> tuple[RaisedError, ...]:
    """The classes and messages of errors."""
    return tuple(RaisedError(_name_classes(error), next(iter(str(error).strip().splitlines()), "")) for error in errors)


def is_generated(frame: FrameType) -> bool:
    """Return whether a frame is of a program that Inductor generated."""
    named = str(frame.f_globals.get("__name__", "")).startswith(_GENERATED)
    return named and find_owner(frame.f_code.co_filename) == "program"


def _name_classes(error: BaseException) -> tuple[str, ...]:
    kind = type(error)
    if kind.__module__.startswith(_WRAPPING):
        return (kind.__name__,)
    return tuple(base.__name__ for base in kind.__mro__ if base not in _COMMON) or (kind.__name__,)


def _find_last_instruction(error: BaseException) -> int | None:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return None if place is None else place.tb_lasti


def _name_way(frame: FrameType, last: int) -> How:
    code = frame.f_code.co_code
    name = dis.opname[code[last]] if 0 <= last < len(code) else ""
    if name in ("RAISE_VARARGS", "RERAISE"):
        return "stated"
    return "called" if name.startswith(("CALL", "PRECALL")) else "implied"
