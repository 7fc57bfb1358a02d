"""A divergence as one compile shows it: what every stage is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from fuzzcompile.attribution.steps import ReplayCount, Step
from fuzzcompile.trials.compiles import Experiments, Trial

Result = TypeVar("Result")


@dataclass(frozen=True)
class Divergence:
    """A failing compile, and what replaying its ledger showed.

    Attributes:
        experiments: the runs and compiles of the case.
        trial: the failing compile. Stages behind the graph passes see something only if its kernels were watched.
        steps: how much each rewrite moved the result of its graph.
        count: replays run so far, for the cost table.
        seconds: how long operators may be compared, at most.
    """

    experiments: Experiments
    trial: Trial
    steps: Sequence[Step]
    count: ReplayCount
    seconds: float = 20.0
    _computed: dict[object, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, compute: Callable[[Divergence], Result]) -> Result:
        """The result of ``compute``, which runs the first time only: several stages ask for it."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return cast("Result", self._computed[compute])
