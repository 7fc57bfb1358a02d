"""Which target this process compiles for: one for the life of a process, as the compiler caches what it was told."""

from __future__ import annotations

from fuzzcompile.errors import UsageError
from fuzzcompile.targets import Target

_assumed: list[Target] = []


def assumed() -> Target | None:
    """The target that this process compiles for; None if it compiles for the device that runs."""
    return _assumed[0] if _assumed else None


def assume(target: Target) -> None:
    """Have everything that this process compiles from now on compiled for ``target``.

    Raises:
        UsageError: it compiles for another one already.
    """
    if _assumed and _assumed[0] != target:
        raise UsageError(f"This process compiles for {_assumed[0].name}; start another one for {target.name}.")
    _assumed[:] = [target]
