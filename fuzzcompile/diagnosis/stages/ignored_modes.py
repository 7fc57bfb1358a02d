"""Modes of a program's own that the compiled program does not honour: eager mode without them, beside it."""

from __future__ import annotations

from fuzzcompile.compiler.user_modes import bypass_modes
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.diagnosis.stages.tracing_ways import run_first_eagerly
from fuzzcompile.model.stages import DYNAMO


def prove_ignored_mode(ablator: Ablator) -> Attribution | None:
    """The mode without which eager mode agrees with the compiled program; None if there is none."""
    named = tuple(run_first_eagerly(ablator.experiments, bypass_modes) or ()) if ablator.is_of_values else ()
    for names in [(name,) for name in named] + [named] * (len(named) > 1):
        if ablator.attempt_in_eager(bypass_modes(names), f"eager mode without {', '.join(names)}"):
            name = "+".join(names)
            return Attribution(Culprit(DYNAMO, None, name, name, necessary=True, details={"kind": "mode"}))
    return None
