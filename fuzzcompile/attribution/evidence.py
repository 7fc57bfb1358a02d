"""Evidence of a divergence, which must be gone in a compile that repairs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import changing_meaning, steps_of
from fuzzcompile.trials.compiles import Trial


@dataclass(frozen=True)
class Evidence:
    """Test that finds a bug in a compile whose verdict alone does not show it.

    Attributes:
        shows: whether such a compile shows it; replays that this takes are counted.
        replays: whether that takes a ledger with snapshots, so that every compile needs one.
    """

    name: str
    shows: Callable[[Trial, ReplayCount], bool]
    replays: bool = False


def _step(trial: Trial, count: ReplayCount) -> bool:
    return bool(changing_meaning(steps_of(trial.ledger, count)))


VALUES = Evidence("values", lambda trial, count: False)
"""Wrong values, or an error: the verdict says it all."""
REPLAY = Evidence("replay", _step, replays=True)
"""A rewrite that moves the float64 result, where native values are within rounding."""
SUSPICION = Evidence("suspicion", lambda trial, count: bool(trial.judgement.suspicious))
"""Values beyond rounding and within default tolerances, which float64 proves wrong."""
