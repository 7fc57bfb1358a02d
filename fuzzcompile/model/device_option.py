"""How a user names a device. Needs no torch."""

from __future__ import annotations

import re

from fuzzcompile.model.errors import UsageError

_OPTION = re.compile(r"auto|cpu|cuda(?::(?P<index>\d+))?")


def device_index(option: str) -> int:
    """The index in ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; 0 where there is none.

    Raises:
        UsageError: ``option`` is spelled otherwise.
    """
    match = _OPTION.fullmatch(option)
    if match is None:
        raise UsageError(f"{option!r} is not a device; use auto, cpu, cuda or cuda:N.")
    return int(match["index"] or 0)
