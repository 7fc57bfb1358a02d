"""Facts about torch that differ between its versions, as data.

``base.toml`` holds what is true in every version that fuzzcompile knows; ``2.13.toml`` and its like add what is true in
one. To support another version, add its file: :func:`facts_of` finds it by its name. A version without a file gets the
facts of the nearest one, and :attr:`Facts.note` says so. Loading needs no torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fuzzcompile.facts.loading import FactsError, Minor, known_versions, minor_of, tables_of
from fuzzcompile.facts.tables import Reason, StageSource, Tables

__all__ = ["Facts", "FactsError", "Reason", "StageSource", "facts", "facts_of", "is_in_known_range", "known_versions"]


@dataclass(frozen=True)
class Facts(Tables):
    """The facts that apply to one version of torch.

    Attributes:
        version: the version asked for.
        table: the minor version whose table applies.
    """

    version: str = ""
    table: Minor = (0, 0)

    @property
    def exact(self) -> bool:
        """True if the table is the version's own and not that of the nearest one."""
        return minor_of(self.version) == self.table

    @property
    def note(self) -> str | None:
        """The sentence that says which facts stand in for this version's; None if it has its own."""
        if self.exact:
            return None
        known = ", ".join(map(_text, known_versions()))
        return (
            f"fuzzcompile has no table of facts for torch {self.version}, only for {known}: "
            f"that of {_text(self.table)} is used."
        )

    @property
    def has_reasons(self) -> bool:
        """True if the reasons why rules cannot be reached were checked on this version."""
        return self.exact and bool(self.unreachable)

    def lasting_reason_for(self, stage: str, name: str, device: str) -> Reason | None:
        """Return why a rule cannot be reached on a type of device whatever is switched on; see :meth:`reason_for`."""
        every = frozenset(reason.setting for reason in self.unreachable if reason.setting is not None)
        return self.reason_for(stage, name, device, every)

    def reason_for(self, stage: str, name: str, device: str, switched_on: frozenset[str]) -> Reason | None:
        """Return why a rule is unreachable on a type of device; None without a reason checked on this version.

        Args:
            stage: the stage of the rule.
            name: the name of the rule or pass.
            device: a type of device, such as ``cpu``.
            switched_on: settings that some case switches on, written as in :attr:`Reason.setting`.
        """
        for reason in self.unreachable if self.has_reasons else ():
            if reason.covers(stage, name, device) and reason.setting not in switched_on:
                return reason
        return None


@functools.cache
def facts_of(version: str) -> Facts:
    """The facts for a version of torch: its own table, or that of the nearest version (of two, the newer).

    Raises:
        FactsError: ``version`` is no version, or a table is malformed.
    """
    wanted = _number(minor_of(version))
    nearest = min(known_versions(), key=lambda known: (abs(_number(known) - wanted), -_number(known)))
    return Facts(**vars(tables_of(nearest)), version=version, table=nearest)


def facts() -> Facts:
    """The facts for the installed torch."""
    import torch

    return facts_of(str(torch.__version__))


def is_in_known_range(version: str) -> bool:
    """Return whether ``version`` is one with a table of its own, or lies between two such."""
    return known_versions()[0] <= minor_of(version) <= known_versions()[-1]


def _number(minor: Minor) -> int:
    return 100 * minor[0] + minor[1]


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"
