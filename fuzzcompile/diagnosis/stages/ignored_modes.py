"""Modes of a program's own that the compiled program does not honour: eager mode without them, beside it."""

from __future__ import annotations

from fuzzcompile.compiler.user_modes import bypass_modes, list_modes
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.diagnosis.stages.tracing_ways import run_first_eagerly
from fuzzcompile.model.stages import DYNAMO


def prove_ignored_mode(ablator: Ablator) -> Attribution | None:
    """The mode without which eager mode agrees with the compiled program; None if there is none."""
    if not ablator.is_of_values or not list_modes():  # most programs have none, and need no run to say so
        return None
    named = tuple(run_first_eagerly(ablator.experiments, bypass_modes) or ())
    for names in [(name,) for name in named] + [named] * (len(named) > 1):
        if ablator.attempt_in_eager(bypass_modes(names), f"eager mode without {', '.join(names)}"):
            name = "+".join(names)
            return Attribution(Culprit(DYNAMO, None, name, name, necessary=True, details={"kind": "mode"}))
    return None
