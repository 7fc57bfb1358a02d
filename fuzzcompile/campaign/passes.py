"""What can go wrong in the installed torch, and how often the corpus has seen it happen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzcompile.corpus import Store, StoredCoverage
from fuzzcompile.corpus.failures import CorpusError
from fuzzcompile.inductor.catalogue import STAGES, Known, known_to

__all__ = ["STAGES", "Listed", "Listing", "list_passes"]

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


def list_passes(device: torch.device, location: str | None) -> Listing:
    """The catalogue of the installed torch for ``device``, with the counts of the corpus at ``location``.

    Rewrites that the corpus saw under this torch and that are nowhere registered (a user's own passes) are added.

    Raises:
        CorpusError: ``location`` was given, and there is no corpus; without one the counts are left out.
    """
    known = known_to(device)
    try:
        with Store.open(location, create=False) as store:
            seen, named = store.coverage(str(torch.__version__)), store.location
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
    yield from _with_their_patterns(listed)
    for (stage, name), by_pass in counts.items():
        if (stage, name) not in met and stage not in _UNLISTED:
            total = sum(by_pass.values(), Counter[str]())
            own = Known(stage, "pass", name, next(iter(by_pass)) or None, when="not registered in this torch")
            yield Listed(own, total["fired"], total["refused"])


def _with_their_patterns(listed: list[Listed]) -> Iterator[Listed]:
    """A table of patterns fires as often as its patterns do."""
    inside: dict[tuple[str, str | None], list[Listed]] = defaultdict(list)
    for one in listed:
        if one.known.kind == "pattern":
            inside[one.known.stage, one.known.pass_name].append(one)
    for one in listed:
        members = inside.get((one.known.stage, one.known.name)) if one.known.kind == "pass" else None
        if members:
            fired, refused = (sum(getattr(m, key) or 0 for m in (*members, one)) for key in ("fired", "refused"))
            one = replace(one, fired=fired, refused=refused)
        yield one
