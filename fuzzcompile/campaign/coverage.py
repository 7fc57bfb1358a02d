"""What a corpus has reached of all that the installed torch can do, by stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.campaign.passes import Listed, list_passes
from fuzzcompile.corpus import Store, StoredCoverage

KERNELS = "scheduler"


@dataclass(frozen=True)
class Stretch:
    """One kind of thing in one stage: how many are known, and what became of them.

    ``refused`` matched and never passed their check, ``fallback`` were only called where others are lowered, ``off``
    were never reached and do not run under the present settings, ``never`` are the rest. ``known`` is None where nobody
    registers them: shapes of kernels.
    """

    stage: str
    kind: str
    known: int | None
    fired: tuple[str, ...]
    refused: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """Share of what can run that fired or was called; None where that is not known."""
        if self.known is None or self.known == len(self.off):
            return None
        return (len(self.fired) + len(self.fallback)) / (self.known - len(self.off))

    def to_json(self) -> dict[str, Any]:
        """Everything, names included, as plain JSON."""
        return {**{key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()},
                "share": self.share}  # fmt: skip


@dataclass(frozen=True)
class CoverageTable:
    """All stages in their order, for one torch and one corpus."""

    torch: str
    corpus: str
    stretches: tuple[Stretch, ...]


def coverage_of(device: torch.device, location: str | None) -> CoverageTable:
    """What the corpus at ``location`` has reached under the installed torch, beside what that torch registers.

    Raises:
        CorpusError: there is no corpus.
    """
    version = str(torch.__version__)
    with Store.open(location, create=False) as store:
        seen, named = store.coverage(version), store.location
    rows = [row for row in list_passes(device, location).rows if row.known.kind != "setting"]
    groups: dict[tuple[str, str], list[Listed]] = {}
    for row in rows:
        groups.setdefault((row.known.stage, row.known.kind), []).append(row)
    found = [_stretch(stage, kind, listed) for (stage, kind), listed in groups.items()]
    return CoverageTable(version, named, (*found, *_kernels(seen)))


def _stretch(stage: str, kind: str, rows: list[Listed]) -> Stretch:
    sorted_out: dict[str, list[str]] = {"fired": [], "refused": [], "fallback": [], "off": [], "never": []}
    for row in rows:
        sorted_out[_state(row)].append(_name(row, rows))
    return Stretch(stage, kind, len(rows), **{state: tuple(names) for state, names in sorted_out.items()})


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
