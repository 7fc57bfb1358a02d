"""Promises that a case's own settings make, as far as its judged compile shows whether they are kept."""

from __future__ import annotations

from fuzzcompile.case import CompileSettings
from fuzzcompile.facts import facts
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial

FULLGRAPH = "fullgraph: an error in place of a graph break"
"""``torch.compile``: "If True, then it will error if the entire function is not capturable into a single graph"."""
_CASTS = "emulate_precision_casts"


def promise(setting: str) -> str:
    """Name the promise of an entry of Inductor's config, as reports do: the entry, and torch's words on it."""
    return f"{setting}: {facts().bitwise.promises[setting].strip()}"


def promises_casts(experiments: Experiments) -> bool:
    """Return whether the case itself asks for its low-precision casts to be kept."""
    settings = experiments.case.settings
    return settings.backend == "inductor" and asks_for_casts(settings)


def asks_for_casts(settings: CompileSettings) -> bool:
    """Return whether settings request eager's rounding, by name or by a numerics mode that implies it (torch 2.15)."""
    own = {**settings.inductor, **settings.options}
    return own.get(_CASTS) is True or str(own.get("numerics", "")) in ("strict", "strict_pointwise")


def broken(experiments: Experiments, trial: Trial, verdict: Verdict) -> str | None:
    """The promise that the judged compile breaks, for a verdict that is a bug; None if it breaks none.

    ``fuzzcompile.contracts`` judges promises of equal bits, which takes compiles of its own.
    """
    if trial.draws_others:
        return promise("fallback_random")
    if verdict is Verdict.PRECISION_LOSS and promises_casts(experiments) and trial.judgement.casts_dropped:
        return promise(_CASTS)
    return FULLGRAPH if verdict is Verdict.ACCEPTS_INVALID and breaks_silently(experiments, trial) else None


def breaks_silently(experiments: Experiments, trial: Trial) -> bool:
    """Return whether a graph broke without an error in a program that asks to be one graph."""
    settings, compiled = experiments.case.settings, trial.observation
    return bool(settings.fullgraph and compiled.failure is None and trial.ledger.graph_breaks)
