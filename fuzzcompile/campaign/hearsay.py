"""Coverage and proofs that concurrent campaigns on one corpus share with each other."""

from __future__ import annotations

from collections.abc import Callable, Set

from fuzzcompile.campaign.steering import FINDING, Item
from fuzzcompile.corpus import Finding, Store
from fuzzcompile.oracle.verdicts import Verdict


class Hearsay:
    """Merges coverage and proofs of other campaigns into this one; each call reads only entries that are new.

    Args:
        store: the open corpus.
        compiler: only coverage under the same compiler counts (`fuzzcompile.corpus.compiler_of`).
        needs_no_proof: returns whether a further hit of a finding would prove nothing new.
    """

    def __init__(self, store: Store, compiler: str, needs_no_proof: Callable[[Finding], bool]) -> None:
        self._store, self._compiler, self._needs_no_proof = store, compiler, needs_no_proof
        self._since = store.news(compiler, None).since

    def take_over(self, hear: Callable[[Set[Item]], None], known: set[tuple[str, str]]) -> None:
        """Pass the new coverage to the steering; extend the signatures and kinds of bug that need no proof."""
        news = self._store.news(self._compiler, self._since)
        self._since = news.since
        reached = {(row.stage, row.rewrite, str(row.outcome)) for row in news.reached}
        hear(reached | {(FINDING, signature, "fired") for signature in news.signatures})
        unproved = news.hit - {signature for signature, _ in known}
        for finding in self._store.findings_named(unproved) if unproved else ():
            if self._needs_no_proof(finding):
                known.add((finding.signature, Verdict(finding.verdict).kind))
