"""What the compiled program can be compared with, by name. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection

from fuzzcompile.errors import UsageError

# Beside these, every mode of torch.compile.
BASELINES = ("eager", "float64", "aot_eager", "cpu")


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
