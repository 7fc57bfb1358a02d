"""What a corpus has reached of all that the installed torch can do, by stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzcompile.campaign.window import Window, window_of
from fuzzcompile.commands.passes import UNREGISTERED, Listed, list_passes
from fuzzcompile.commands.unreachable import Reason, reason_for
from fuzzcompile.corpus import Store, StoredCoverage

KERNELS = "scheduler"
# What a rewrite or an observed pass is, among what stands in the table.
RULES = ("pass", "pattern")


@dataclass(frozen=True)
class Stretch:
    """One kind of thing in one stage: how many are known, and what became of them.

    ``refused`` matched and never passed their check, ``fallback`` were only called where others are lowered,
    ``unreachable`` were never reached and have a written reason (the value) why this device or the default
    configuration cannot reach them, ``off`` were never reached and do not run under the present settings, ``never`` are
    the rest. ``known`` is None where nobody registers them: shapes of kernels.
    """

    stage: str
    kind: str
    known: int | None
    fired: tuple[str, ...]
    refused: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    unreachable: Mapping[str, Reason] = field(default_factory=dict)
    off: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @property
    def reachable(self) -> int | None:
        """How many have no written reason against them; None where that is not known."""
        return None if self.known is None else self.known - len(self.unreachable)

    @property
    def share(self) -> float | None:
        """Share of what can be reached that fired or was called; None where that is not known or nothing."""
        return (len(self.fired) + len(self.fallback)) / self.reachable if self.reachable else None

    def to_json(self) -> dict[str, Any]:
        """Everything, names included, as plain JSON."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        reasons = {name: {"group": reason.group, "why": reason.why} for name, reason in self.unreachable.items()}
        return {**plain, "unreachable": reasons, "share": self.share}


@dataclass(frozen=True)
class Total:
    """Rewrite rules and observed passes of all stages: known, with a reason against them, and fired."""

    known: int
    unreachable: int
    fired: int

    @property
    def share(self) -> float:
        """Share of those that can be reached which fired."""
        return self.fired / max(self.known - self.unreachable, 1)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**vars(self), "share": self.share}


@dataclass(frozen=True)
class CoverageTable:
    """All stages in their order, for one torch, one device and one corpus, or the first ``window`` of it."""

    torch: str
    device: str
    corpus: str
    stretches: tuple[Stretch, ...]
    window: Window
    seen: tuple[StoredCoverage, ...]

    @property
    def rules(self) -> Total:
        """All rewrite rules and observed passes together."""
        chosen = [one for one in self.stretches if one.kind in RULES and one.known is not None]
        return Total(
            sum(one.known or 0 for one in chosen),
            sum(len(one.unreachable) for one in chosen),
            sum(len(one.fired) for one in chosen),
        )


def coverage_of(device: torch.device, location: str | None, within: float | None = None) -> CoverageTable:
    """What the corpus at ``location`` has reached under the installed torch, beside what that torch registers.

    ``within`` seconds of campaign time, all cases after that are left out.

    Raises:
        CorpusError: there is no corpus.
    """
    version = str(torch.__version__)
    with Store.open(location, create=False) as store:
        window = window_of(store, version, within)
        seen, named = store.coverage(version, until=window.until), store.location
    listed = list_passes(device, location, until=window.until).rows
    # What a corpus saw and nobody registers (a user's own pass) would count as reached without ever counting as missed.
    rows = [row for row in listed if row.known.kind != "setting" and row.known.when != UNREGISTERED]
    groups: dict[tuple[str, str], list[Listed]] = {}
    for row in rows:
        groups.setdefault((row.known.stage, row.known.kind), []).append(row)
    found = [_stretch(stage, kind, listed, device) for (stage, kind), listed in groups.items()]
    return CoverageTable(version, device.type, named, (*found, *_kernels(seen)), window, tuple(seen))


def _stretch(stage: str, kind: str, rows: list[Listed], device: torch.device) -> Stretch:
    sorted_out: dict[str, list[str]] = {"fired": [], "refused": [], "fallback": [], "off": [], "never": []}
    unreachable = dict[str, Reason]()
    for row in rows:
        state, name = _state(row), _name(row, rows)
        reason = reason_for(row.known, device.type) if state not in ("fired", "fallback") else None
        if reason is None:
            sorted_out[state].append(name)
        else:
            unreachable[name] = reason
    lists = {state: tuple(names) for state, names in sorted_out.items()}
    return Stretch(stage, kind, len(rows), unreachable=unreachable, **lists)


def _state(row: Listed) -> str:
    for state in ("fired", "fallback", "refused"):
        if getattr(row, state):
            return state
    return "off" if row.known.on is False else "never"


def _name(row: Listed, rows: Iterable[Listed]) -> str:
    """The name, with its pass where the stage has another of that name."""
    known = row.known
    alone = sum(other.known.name == known.name for other in rows) == 1
    return known.name if alone or not known.pass_name else f"{known.name} ({known.pass_name})"


def _kernels(seen: Iterable[StoredCoverage]) -> Iterator[Stretch]:
    shapes = sorted((-row.count, row.rewrite) for row in seen if row.stage == KERNELS)
    if shapes:
        yield Stretch(KERNELS, "kernel", None, tuple(name for _, name in shapes))
