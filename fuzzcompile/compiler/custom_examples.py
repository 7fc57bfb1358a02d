"""The inputs with which a user's own replacement patterns are registered, noted while their module is imported.

torch traces a search function with them and forgets them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.compiler.patching import Function

_MODULE, _REGISTER = "torch._inductor.pattern_matcher", "register_replacement"


@dataclass(frozen=True)
class Example:
    """A search function, and what it was traced with."""

    function: Callable[..., object]
    inputs: Sequence[object]
    scalars: Mapping[str, object] = field(default_factory=dict)


_examples: dict[int, tuple[object, Example]] = {}  # by the identity of the entry, which is kept alive


def example_of(entry: object) -> Example | None:
    """Return the inputs that the pattern of an entry was traced with; None where they were not noted."""
    noted = _examples.get(id(entry))
    return noted[1] if noted is not None else None


@contextlib.contextmanager
def noting_examples() -> Iterator[None]:
    """Note what replacement patterns are registered with inside the block."""
    module = importlib.import_module(_MODULE)
    original = getattr(module, _REGISTER)
    setattr(module, _REGISTER, _noting(original))
    try:
        yield
    finally:
        setattr(module, _REGISTER, original)


def _noting(original: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def register(*args: Any, **kwargs: Any) -> object:
        given = signature.bind(*args, **kwargs).arguments
        before = {id(entry) for entry in _entries(given.get("pass_dicts"))}
        result = original(*args, **kwargs)
        inputs, scalars = given.get("example_inputs"), given.get("scalar_workaround") or {}
        if isinstance(inputs, (list, tuple)):
            example = Example(given["search_fn"], tuple(inputs), dict(scalars))
            new = [entry for entry in _entries(given.get("pass_dicts")) if id(entry) not in before]
            _examples.update({id(entry): (entry, example) for entry in new})
        return result

    return register


def _entries(tables: Any) -> list[object]:
    """The entries of one table or several."""
    if isinstance(tables, (list, tuple)):
        return [entry for table in tables for entry in _entries(table)]
    patterns = getattr(tables, "patterns", tables)
    return [entry for entries in patterns.values() for entry in entries] if isinstance(patterns, Mapping) else []
