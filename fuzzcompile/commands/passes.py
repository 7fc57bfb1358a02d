"""What can go wrong in the installed torch, and how often the corpus has seen it happen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import torch

from fuzzcompile.compiler.catalogue import Kind, Known, known_to
from fuzzcompile.corpus import Store, StoredCoverage
from fuzzcompile.corpus.failures import CorpusError
from fuzzcompile.stage_names import STAGES

__all__ = ["STAGES", "Listed", "Listing", "list_passes"]

UNREGISTERED = "not registered in this torch"
# Its coverage is one of shapes of kernels, which nobody registers.
_UNLISTED = ("scheduler",)


@dataclass(frozen=True)
class Listed:
    """One thing that fuzzcompile knows, with how often it fired and was refused by its own check in the corpus.

    The counts are None where there is no corpus, or nothing of the kind is counted. An operator with a lowering
    registered for it may be called instead: ``fallback``.
    """

    known: Known
    fired: int | None = None
    refused: int | None = None
    fallback: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        said = vars(self.known)
        kind = {} if self.known.kind == "setting" else {"fired": self.fired, "refused": self.refused}
        return {**{key: value for key, value in said.items() if value not in (None, "") or key == "on"}, **kind}


@dataclass(frozen=True)
class Listing:
    """All of them, and the corpus that was counted in (None: there is none)."""

    rows: list[Listed]
    corpus: str | None


def list_passes(device: torch.device, location: str | None, *, until: datetime | None = None) -> Listing:
    """The catalogue of the installed torch for ``device``, with the counts of the corpus at ``location``.

    Rewrites that the corpus saw under this torch and that are nowhere registered (a user's own passes) are added. With
    ``until``, what the cases that campaigns judged later were the first to reach counts as never reached.

    Raises:
        CorpusError: ``location`` was given, and there is no corpus; without one the counts are left out.
    """
    known = known_to(device)
    try:
        with Store.open(location, create=False) as store:
            seen, named = store.coverage(str(torch.__version__), until=until), store.location
    except CorpusError:
        if location is not None:
            raise
        return Listing([Listed(row) for row in known], None)
    return Listing(list(_counted(known, seen)), named)


def _counted(known: Iterable[Known], seen: Iterable[StoredCoverage]) -> Iterator[Listed]:
    counts: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for one in seen:
        counts[one.stage, one.rewrite][one.pass_name or ""][one.outcome] += one.count
    rows = list(known)
    passes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        passes[row.stage, row.name].add(row.pass_name or "")
    met = set[tuple[str, str]]()
    listed = []
    for row in rows:
        if row.kind == "setting":
            listed.append(Listed(row))
            continue
        met.add((row.stage, row.name))
        by_pass = counts.get((row.stage, row.name), {})
        # A name that stands once is counted whatever pass ran it: tables without a name get that of their caller.
        alone = len(passes[row.stage, row.name]) == 1
        chosen = by_pass.values() if alone else [by_pass.get(row.pass_name or "", Counter())]
        total = sum(chosen, Counter[str]())
        fallback = total["fallback"] if row.kind == "lowering" else None
        listed.append(Listed(row, total["fired"], total["refused"], fallback))
    unknown = {place: by_pass for place, by_pass in counts.items() if place not in met and place[0] not in _UNLISTED}
    yield from _with_their_patterns(listed, unknown)
    for (stage, name), by_pass in unknown.items():
        total = sum(by_pass.values(), Counter[str]())
        kind: Kind = "lowering" if stage == "lowering" else "decomposition" if stage == "decomposition" else "pass"
        own = Known(stage, kind, name, next(iter(by_pass)) or None, when=UNREGISTERED)
        yield Listed(own, total["fired"], total["refused"], total["fallback"] if kind == "lowering" else None)


def _with_their_patterns(
    listed: list[Listed], unknown: Mapping[tuple[str, str], Mapping[str, Counter[str]]]
) -> Iterator[Listed]:
    """A table of patterns fires as often as its patterns do, and a pass as often as rules that it makes as it runs."""
    inside: dict[tuple[str, str | None], list[tuple[int, int]]] = defaultdict(list)
    for one in listed:
        if one.known.kind == "pattern":
            inside[one.known.stage, one.known.pass_name].append((one.fired or 0, one.refused or 0))
    for (stage, _), by_pass in unknown.items():
        for pass_name, total in by_pass.items():
            inside[stage, pass_name].append((total["fired"], total["refused"]))
    for one in listed:
        members = inside.get((one.known.stage, one.known.name)) if one.known.kind == "pass" else None
        if members:
            fired, refused = (sum(counts) for counts in zip((one.fired or 0, one.refused or 0), *members, strict=True))
            one = replace(one, fired=fired, refused=refused)
        yield one
