"""Which target this process compiles for: one for the life of a process, as the compiler caches what it was told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fuzzcompile.compiler.target.described import Description
from fuzzcompile.errors import UsageError
from fuzzcompile.targets import Target

_assumed: list[Description] = []


def assumed() -> Target | None:
    """The target that this process compiles for; None if it compiles for the device that runs."""
    return _assumed[0].target if _assumed else None


def assume(target: Target) -> None:
    """Have everything that this process compiles from now on compiled for ``target``.

    Raises:
        UsageError: it compiles for another one already.
        EnvironmentUnfit: this build of torch cannot be told of the target.
    """
    if not _assumed:
        _assumed.append(Description(target))
    elif _assumed[0].target != target:
        raise UsageError(f"This process compiles for {_assumed[0].target.name}; start another one for {target.name}.")


@contextlib.contextmanager
def described() -> Iterator[None]:
    """Tell torch of the target for the time of the block; change nothing in a process without one."""
    if not _assumed:
        yield
        return
    with _assumed[0].in_force():
        yield
