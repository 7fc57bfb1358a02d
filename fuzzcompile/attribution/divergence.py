"""A divergence as one compile shows it: the input of every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import Step
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial

Made = TypeVar("Made")
# How long operators are compared, at most, where nothing else limits the time.
_SECONDS = 20.0


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
    seconds: float = _SECONDS
    _made: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def seen_by(cls, ablator: Ablator, steps: Sequence[Step]) -> Divergence:
        """The divergence that an ablator's compiles are to repair, within the time that is left to it."""
        return cls(ablator.experiments, ablator.trial, steps, ablator.count, min(_SECONDS, ablator.seconds_left))

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict on the failing compile; benign where only float64 shows the divergence."""
        return self.trial.judgement.verdict

    @property
    def is_of_values(self) -> bool:
        """Return whether values are wrong, if only in float64."""
        return self.verdict.kind == "values" or not self.verdict.is_bug

    @property
    def config(self) -> Mapping[str, object]:
        """Entries of Inductor's config that the failing compile ran under."""
        how, settings = self.trial.how, self.experiments.case.settings
        return {**settings.inductor, "fallback_random": how.fallback_random, **(how.config or {})}

    def once(self, make: Callable[[Divergence], Made]) -> Made:
        """``make`` of this divergence, computed on the first call and kept: several stages read the same findings."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[return-value]
