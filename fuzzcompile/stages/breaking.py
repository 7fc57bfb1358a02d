"""Proof by a graph break: the call at fault is left to eager mode, and all else is compiled."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.sources import captured_calls

_MAX_CALLS = 2


def prove_by_break(ablator: Ablator, culprit: Culprit) -> Attribution | None:
    """The culprit, proved by a compile that breaks the graph at its call; None if that does not repair.

    Such a compile also keeps apart what stands before and behind the call, so it proves only what was seen otherwise to
    be wrong with the call itself.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    calls = captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes)
    if not calls or len(calls) > _MAX_CALLS:
        return None
    how = replace(ablator.how, disallowed=(*ablator.how.disallowed, *calls.values()))
    repaired = ablator.attempt(how, f"graph break at {', '.join(calls)}")[1]
    return Attribution(replace(culprit, necessary=True, confidence="high")) if repaired else None
