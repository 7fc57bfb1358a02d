"""Hits of bugs that are known: recognised by their first suspect, and proved by a veto without code generation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator, OutOfTime
from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.labels import family_veto
from fuzzcompile.judging.attribute import first_rewrite
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.signatures import coarse


def known_culprit(divergence: Divergence, verdict: Verdict, known: Collection[tuple[str, str]]) -> Culprit | None:
    """The first suspect, if what it would be reported as is known already.

    Args:
        divergence: what one compile showed.
        verdict: the judgement on it.
        known: signatures, each with the kind of its verdict; their causes do not count.
    """
    if not known or not verdict.is_bug:
        return None
    suspect = first_rewrite(divergence)
    places = {(coarse(signature), kind) for signature, kind in known}
    return suspect if suspect is not None and (suspect.signature, verdict.kind) in places else None


def proved_again(ablator: Ablator, culprit: Culprit) -> Culprit | None:
    """The culprit with its proof: a compile without its family, whose graphs are interpreted, is right.

    The family is refused as a whole, because its members take each other's place and the signature is that of them all.

    Returns:
        None if something stays wrong, so that the case shows another bug too; if the bug needs generated code to show;
        or if there is no time.
    """
    how = ablator.how.with_vetoes(family_veto(culprit.stage, culprit.rewrite or ""))
    how = replace(how, screen=True, record=ablator.replays)
    try:
        # The failing trial may be a full compile, of which a screen may show nothing.
        if not (ablator.trial.how.screen or ablator.screens):
            return None
        _, repaired = ablator.attempt(how, f"veto of the family {culprit.family}")
    except OutOfTime:
        return None
    return replace(culprit, necessary=True, confidence="high") if repaired else None
