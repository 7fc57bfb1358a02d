"""Attributes of torch and Triton that fuzzcompile replaces. Nothing else in the package sets one.

Each is a row of ``compiler/watch/patch_table.py``, with a probe or the reason why it has none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuzzcompile.model.errors import describe_error

_MISSING = object()
FAMILY = "*"
"""The attribute of a row that stands for several attributes of its module."""

Replacement = Callable[[Any, Any], Any]
"""Gives what stands for an attribute, from what the block works for and the original (None if there is none)."""


class Attribute:
    """Place of an attribute (``Scheduler.__init__``) in a module, or in a class of it."""

    module: str
    attribute: str
    optional: bool = False

    def find_owner(self) -> Any:
        """The module or class that holds the attribute; ImportError or AttributeError where there is no such place."""
        owner: Any = importlib.import_module(self.module)
        for part in self.attribute.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def leaf(self) -> str:
        """Name of the attribute in its owner."""
        return self.attribute.rsplit(".", 1)[-1]

    @property
    def is_family(self) -> bool:
        """True where it stands for several attributes of its module."""
        return self.leaf == FAMILY

    def check_place(self) -> str | None:
        """Return the reason why this torch has no such place; None if it has one."""
        try:
            owner = self.find_owner()
            _ = self.optional or self.is_family or getattr(owner, self.leaf)
        except (ImportError, AttributeError) as error:
            return describe_error(error)
        return None

    @contextlib.contextmanager
    def replace(self, value: object) -> Iterator[None]:
        """Set the attribute to ``value`` for the time of the block."""
        with replace_attribute(self.find_owner(), self.leaf, value):
            yield


@contextlib.contextmanager
def replace_attribute(owner: Any, leaf: str, value: object) -> Iterator[None]:
    """Set an attribute of a module or class to ``value`` for the time of the block."""
    # Of a class its own entry: a static method as such, and none of an inherited one.
    present = vars(owner).get(leaf, _MISSING) if isinstance(owner, type) else getattr(owner, leaf, _MISSING)
    setattr(owner, leaf, value)
    try:
        yield
    finally:
        if present is _MISSING:
            delattr(owner, leaf)
        else:
            setattr(owner, leaf, present)


@dataclass(frozen=True)
class ReplacedAttribute(Attribute):
    """An attribute that is replaced outside of what a watched compile records."""

    module: str
    attribute: str
    make: Replacement | None = None  # what stands for it; None where the caller says so
    optional: bool = False  # some builds of torch lack it and get it added
    probe: Callable[[], str | None] | None = None  # what is wrong with the replacement on this torch; None if it holds
    unprobed: str = ""  # why it has no probe, a sentence

    @property
    def name(self) -> str:
        """The full name of the attribute."""
        return f"{self.module}.{self.attribute}"

    def replace_if_loaded(self, value: object) -> contextlib.AbstractContextManager[None]:
        """The same, where this torch has the place and the process has loaded it; else nothing."""
        there = self.module in sys.modules and self.check_place() is None
        return self.replace(value) if there else contextlib.nullcontext()

    def name_member(self, name: str) -> ReplacedAttribute:
        """The attribute ``name`` of a family."""
        return dataclasses.replace(self, attribute=name)

    def put(self, value: object, of: object = None) -> None:
        """Set the attribute to ``value`` until it is set again; ``of`` is an object of the class that holds it."""
        setattr(self.find_owner() if of is None else of, self.leaf, value)

    def put_entry(self, key: object, value: object, of: object) -> None:
        """Set an entry of the dictionary that the attribute of ``of`` is; None takes it away."""
        entries: dict[object, object] = getattr(of, self.leaf)
        entries.pop(key, None)
        if value is not None:
            entries[key] = value

    def put_everywhere(self, value: object) -> None:
        """Set the attribute to ``value`` until the process ends, in the modules too that have imported it by name."""
        original = getattr(self.find_owner(), self.leaf)
        for module in list(sys.modules.values()):
            if vars(module).get(self.leaf) is original:
                setattr(module, self.leaf, value)


def replace_with(value: Any) -> Replacement:
    """The replacement that is ``value``, whatever was there."""
    return lambda session, original: value


def find_missing(places: Iterable[ReplacedAttribute]) -> dict[str, str]:
    """The places that this torch and Triton lack, by name, with the reason."""
    return {place.name: why for place in places if (why := place.check_place()) is not None}


@contextlib.contextmanager
def replace_attributes(session: Any, places: Iterable[ReplacedAttribute]) -> Iterator[None]:
    """Replace the attributes for the time of the block; ``session`` is what the replacements work for."""
    with contextlib.ExitStack() as stack:
        for place in places:
            assert place.make is not None
            original = getattr(place.find_owner(), place.leaf, None)
            stack.enter_context(place.replace(place.make(session, original)))
        yield
