"""Names of the baselines that the compiled program can be compared with. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection

from fuzzcompile.model.contract import AOTI, EXPORT
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.facts import find_facts
from fuzzcompile.model.versions import installed_torch

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


def list_modes() -> tuple[str, ...] | None:
    """The modes of ``torch.compile`` of the installed torch; None if no table of facts is about its version.

    Raises:
        EnvironmentUnfit: there is no torch.
    """
    version = installed_torch()
    if not version:
        raise EnvironmentUnfit("torch is not installed in this environment; install it beside fuzzcompile.")
    known = find_facts(version)
    return known.names.modes if known.exact else None
