"""Ablations: compiles with something switched off, judged by the evidence of the divergence that they should repair."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fuzzcompile.compiler.compile_changes import CompileChange
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.attribution.culprit import Ablation
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, Step, measure_steps, select_semantic_steps
from fuzzcompile.diagnosis.oracle.judgement import largest_error
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.pool.worker import say


@dataclass(frozen=True)
class Evidence:
    """Test that finds a bug in a compile whose verdict alone does not show it.

    ``shows`` counts the replays that it takes; ``replays`` says that it takes a ledger with snapshots.
    """

    name: str
    shows: Callable[[Trial, ReplayCount], bool]
    replays: bool = False


VALUES = Evidence("values", lambda trial, count: False)
"""Wrong values, or an error: the verdict says it all."""
REPLAY = Evidence(
    "replay", lambda trial, count: bool(select_semantic_steps(measure_steps(trial.ledger, count))), replays=True
)
"""A rewrite that moves the float64 result, where native values are within rounding."""
SUSPICION = Evidence("suspicion", lambda trial, count: bool(trial.judgement.suspicious))
"""Values beyond rounding and within default tolerances, which float64 proves wrong."""


class OutOfTime(Exception):
    """No further compile may be begun."""


@dataclass
class Ablator:
    """Compiles the case of a failing ``trial`` in other ways, checks whether that repairs it, and keeps the table.

    ``evidence`` shows the bug; ``deadline`` is the value of ``time.monotonic()`` after which no compile is begun.
    """

    experiments: Experiments
    trial: Trial
    count: ReplayCount
    evidence: Evidence = VALUES
    deadline: float | None = None
    ablations: list[Ablation] = field(default_factory=list)

    @property
    def how(self) -> Compilation:
        """Compilation of the failing trial, which every ablation changes."""
        return self.experiments.how

    @property
    def replays(self) -> bool:
        """Return whether replays alone show the divergence, so that every compile needs a ledger with snapshots."""
        return self.evidence.replays

    def attempt(self, how: Compilation, toggle: str) -> tuple[Trial, bool]:
        """Compile as ``how`` says; the trial, and whether it repairs the divergence. Noted under ``toggle``.

        Raises:
            OutOfTime: the deadline has passed.
        """
        say(f"attributing: change {len(self.ablations) + 1}, {toggle}")
        trial = self.run_trial(how)
        repaired = self.repairs(trial)
        self.note(toggle, trial, repaired)
        return trial, repaired

    def attempt_under(self, *changes: CompileChange, toggle: str = "", watched: bool = False) -> tuple[Trial, bool]:
        """Compile under further changes; the trial, and whether they repair the divergence together.

        ``toggle`` is what the table calls them (their own texts by default); a ``watched`` compile keeps the ledger,
        the IR of every graph and what its kernels write.

        Raises:
            OutOfTime: the deadline has passed.
        """
        how = self.how.under(*changes)
        if watched:
            how = replace(how, kernels=True, record=True)
        return self.attempt(how, toggle or ", ".join(change.text for change in changes))

    def attempt_in_eager(self, change: contextlib.AbstractContextManager[object], toggle: str) -> bool:
        """Return whether a change of eager mode alone, under which its runs are made again, removes the divergence.

        Raises:
            OutOfTime: the deadline has passed.
        """
        self._check_time()
        with change:
            judgement = self.experiments.judge_anew(self.trial.observation)
        trial = replace(self.trial, judgement=judgement)
        repaired = self.repairs(trial)
        self.note(toggle, trial, repaired)
        return repaired

    def run_trial(self, how: Compilation) -> Trial:
        """Compile as ``how`` says, and note nothing.

        Raises:
            OutOfTime: the deadline has passed.
        """
        self._check_time()
        return self.experiments.trial(how)

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def note(self, toggle: str, trial: Trial, repaired: bool) -> None:
        """Write a line of the table of ablations: what a compile changed, and whether it repaired the divergence."""
        if trial.how.screen:
            toggle += " (graphs interpreted)"
        self.ablations.append(Ablation(toggle, repaired, largest_error(trial.judgement)))

    def repairs(self, trial: Trial) -> bool:
        """Return whether the divergence is gone in ``trial`` (another error is no repair)."""
        verdict, failing = trial.judgement.verdict, self.trial.judgement.verdict
        if failing is Verdict.ACCEPTS_INVALID:
            return verdict is Verdict.INVALID
        if verdict.is_bug:
            # A layout that differs besides is another matter than wrong values.
            return verdict is Verdict.METADATA and failing.kind == "values"
        return not self.evidence.shows(trial, self.count)

    def fails_alike(self, trial: Trial) -> bool:
        """Return whether ``trial`` fails in the way that the failing one does."""
        return trial.judgement.verdict.kind == self.trial.judgement.verdict.kind

    @functools.cached_property
    def screens(self) -> bool:
        """Return whether the divergence shows without code generation."""
        trial = self.run_trial(replace(self.how, screen=True))
        return not self.repairs(trial) and self.fails_alike(trial)


T = TypeVar("T")
# How long operators are compared, at most, where nothing else limits the time.
_SECONDS = 20.0


@dataclass(frozen=True)
class Divergence:
    """A failing compile, and what replaying its ledger showed: the input of every stage.

    Stages behind the graph passes see something only if the kernels of ``trial`` were watched. ``steps`` say how much
    each rewrite moved the result of its graph; ``seconds`` is how long operators may be compared, at most.
    """

    experiments: Experiments
    trial: Trial
    steps: Sequence[Step]
    count: ReplayCount
    seconds: float = _SECONDS
    _made: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_ablator(cls, ablator: Ablator, steps: Sequence[Step]) -> Divergence:
        """The divergence that an ablator's compiles are to repair, within the time that is left to it."""
        left = math.inf if ablator.deadline is None else ablator.deadline - time.monotonic()
        # At least a second, so that what needs no compile is looked at all the same.
        return cls(ablator.experiments, ablator.trial, steps, ablator.count, min(_SECONDS, max(1.0, left)))

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
        return {**settings.inductor, "fallback_random": True, **how.config}

    def once(self, make: Callable[[Divergence], T]) -> T:
        """``make`` of this divergence, computed on the first call and kept: several stages read the same findings."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[return-value]
