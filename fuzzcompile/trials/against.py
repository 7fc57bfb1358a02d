"""Names of the baselines that the compiled program can be compared with. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection

from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.execution.named import installed_torch
from fuzzcompile.facts import facts_of
from fuzzcompile.sides import AOTI, EXPORT

# Beside these, every mode of torch.compile.
BASELINES = ("eager", "float64", "aot_eager", "cpu", EXPORT, AOTI)


def check_against(against: str, modes: Collection[str]) -> None:
    """Refuse a name that compiled cannot be compared with.

    Args:
        against: the name.
        modes: the modes that ``torch.compile`` takes.

    Raises:
        UsageError: listing the names that are accepted.
    """
    known = (*BASELINES, *modes)
    if against not in known:
        raise UsageError(f"Nothing can be compared with {against!r}; use one of {', '.join(known)}.")


def modes_here() -> tuple[str, ...] | None:
    """The modes of ``torch.compile`` of the installed torch; None if no table of facts is about its version.

    Raises:
        EnvironmentUnfit: there is no torch.
    """
    version = installed_torch()
    if not version:
        raise EnvironmentUnfit("torch is not installed in this environment; install it beside fuzzcompile.")
    known = facts_of(version)
    return known.names.modes if known.exact else None
