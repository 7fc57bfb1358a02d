"""Attributes of torch and Triton that are replaced for a target, and their loader.

:mod:`~fuzzcompile.compiler.target.described` and :mod:`~fuzzcompile.compiler.target.interpreted.places` list them.
Unlike a patch of :mod:`fuzzcompile.compiler.patches`, a replacement here does not watch the compile: it answers for a
device, and what it raises is meant for the compile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuzzcompile.compiler.patching import Attribute
from fuzzcompile.compiler.unseen import reason

Replace = Callable[[Any, Any], Any]
_MISSING = object()


@dataclass(frozen=True)
class Place(Attribute):
    """An attribute that is replaced.

    Attributes:
        module: name of the module.
        attribute: path of the attribute in it.
        replace: gives the replacement, from what the block works for and the original (None if there is none).
        optional: whether some builds of torch lack the attribute, so that the replacement adds it.
    """

    module: str
    attribute: str
    replace: Replace
    optional: bool = False

    @property
    def name(self) -> str:
        """The full name of the attribute."""
        return f"{self.module}.{self.attribute}"

    def missing(self) -> str | None:
        """Return why there is no such place; None if there is one."""
        try:
            owner = self.owner()
            if not self.optional:
                getattr(owner, self.leaf)
        except (ImportError, AttributeError) as error:
            return reason(error)
        return None

    @contextlib.contextmanager
    def replaced(self, session: Any) -> Iterator[None]:
        """Replace the attribute for the time of the block."""
        owner = self.owner()
        present = vars(owner).get(self.leaf, _MISSING)
        setattr(owner, self.leaf, self.replace(session, getattr(owner, self.leaf, None)))
        try:
            yield
        finally:
            if present is _MISSING:
                delattr(owner, self.leaf)
            else:
                setattr(owner, self.leaf, present)


def always(value: Any) -> Replace:
    """The replacement that is ``value``, whatever was there."""
    return lambda session, original: value


def missing_of(places: Iterable[Place]) -> dict[str, str]:
    """The places that this torch and Triton lack, by name, with the reason."""
    return {place.name: why for place in places if (why := place.missing()) is not None}


@contextlib.contextmanager
def installed(session: Any, places: Iterable[Place]) -> Iterator[None]:
    """Replace the attributes for the time of the block; ``session`` is what the replacements work for."""
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(place.replaced(session))
        yield
