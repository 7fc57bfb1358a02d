"""Refusal of rewrites: those that are vetoed, or all but those that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.ledger import Label, Ledger, Outcome
from fuzzcompile.facts import facts

MANDATORY = facts().passes.mandatory
"""Passes that later stages rely on: without them a graph cannot be lowered."""

_ALWAYS_RUN = MANDATORY | facts().passes.kept
# Functions whose name ends so only run other passes.
_HOLDS_PASSES = "passes"


@dataclass
class Refusing:
    """Names of rewrites that are vetoed, and of those that alone are wanted (None: all); refusals are counted."""

    vetoed: Sequence[str] = ()
    only: Sequence[str] | None = None
    ledger: Ledger = field(default_factory=Ledger)

    def refuses(self, label: Label) -> bool:
        """Return whether this rewrite is vetoed, by name or because only others are wanted; counted if so."""
        wanted = self.only is None or label.rewrite in _ALWAYS_RUN or labels.vetoes(label, self.only)
        refused = not wanted or labels.vetoes(label, self.vetoed)
        if refused:
            self.count(label, "vetoed")
        return refused

    def refuses_pass(self, label: Label, *, container: bool) -> bool:
        """Like :meth:`refuses` for a whole pass; of a container of patterns, ``only`` refuses just the patterns."""
        if self.only is not None and container and not labels.vetoes(label, self.vetoed):
            return False
        return self.refuses(label)

    def refuses_plain(self, label: Label, can: Callable[[], bool]) -> bool:
        """Like :meth:`refuses` for a function that is no observed pass, if ``can`` says that it can be left out."""
        named = labels.vetoes(label, self.vetoed)
        if not named and (self.only is None or label.rewrite.endswith(_HOLDS_PASSES)):
            return False
        return can() and self.refuses(label)

    def count(self, label: Label, outcome: Outcome) -> None:
        """Count the outcome of a match, for coverage."""
        self.ledger.coverage[label, outcome] += 1
