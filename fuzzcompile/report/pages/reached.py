"""What campaigns reached of the compiler, stage by stage, as the corpus stores it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuzzcompile.corpus.records import StoredCoverage
from fuzzcompile.model.stages import STAGES


@dataclass(frozen=True)
class Reached:
    """One stage under one compiler: names that fired, that their own check always refused, that were only called."""

    stage: str
    fired: Sequence[str]
    refused: Sequence[str]
    called: Sequence[str]

    @property
    def total(self) -> int:
        """Names that were reached in any way."""
        return len(self.fired) + len(self.refused) + len(self.called)


def reached(coverage: Iterable[StoredCoverage]) -> dict[str, list[Reached]]:
    """The stages in the compiler's order, by compiler."""
    stages = defaultdict[tuple[str, str], dict[str, set[str]]](lambda: defaultdict(set))
    for row in coverage:
        stages[row.torch, row.stage][row.outcome].add(row.rewrite)
    order = {stage: place for place, stage in enumerate(STAGES)}
    tables = defaultdict[str, list[Reached]](list)
    for compiler, stage in sorted(stages, key=lambda key: (key[0], order.get(key[1], len(order)), key[1])):
        outcomes = stages[compiler, stage]
        fired, refused, called = (outcomes.get(name, set()) for name in ("fired", "refused", "fallback"))
        tables[compiler].append(
            Reached(stage, sorted(fired), sorted(refused - fired), sorted(called - fired - refused))
        )
    return dict(tables)
