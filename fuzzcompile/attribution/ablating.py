"""Ablations: compiles with something switched off, and whether the divergence is gone with it."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import dataclass, field, replace

from fuzzcompile.attribution.culprit import Ablation
from fuzzcompile.attribution.evidence import VALUES, Evidence
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.execution.worker import say
from fuzzcompile.oracle.judgement import error_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial


class OutOfTime(Exception):
    """No further compile may be begun."""


@dataclass
class Ablator:
    """Compiles the case of a failing ``trial`` in other ways, checks whether that repairs it, and keeps the table.

    Attributes:
        evidence: what shows the bug.
        deadline: value of ``time.monotonic()`` after which no compile is begun; None for no limit.
        ablations: the table, in the order of the compiles.
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

    @property
    def seconds_left(self) -> float:
        """Time before the deadline, at least a second, so that what needs no compile is looked at all the same."""
        return math.inf if self.deadline is None else max(1.0, self.deadline - time.monotonic())

    def attempt(self, how: Compilation, toggle: str) -> tuple[Trial, bool]:
        """Compile as ``how`` says; the trial, and whether it repairs the divergence. Noted under ``toggle``.

        Raises:
            OutOfTime: the deadline has passed.
        """
        say(f"attributing: change {len(self.ablations) + 1}, {toggle}")
        trial = self.compiled(how)
        repaired = self.repaired(trial)
        self.note(toggle, trial, repaired)
        return trial, repaired

    def attempt_in_eager(self, change: contextlib.AbstractContextManager[object], toggle: str) -> bool:
        """Return whether a change of eager mode alone removes the divergence.

        Args:
            change: what is changed while the eager runs are made again.
            toggle: the change, for the reader of the table.

        Raises:
            OutOfTime: the deadline has passed.
        """
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime
        with change:
            judgement = self.experiments.judge_anew(self.trial.observation)
        trial = replace(self.trial, judgement=judgement)
        repaired = self.repaired(trial)
        self.note(toggle, trial, repaired)
        return repaired

    def compiled(self, how: Compilation) -> Trial:
        """Compile as ``how`` says, and note nothing.

        Raises:
            OutOfTime: the deadline has passed.
        """
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime
        return self.experiments.trial(how)

    def note(self, toggle: str, trial: Trial, repaired: bool) -> None:
        """Write a line of the table of ablations.

        Args:
            toggle: what the compile changed, for the reader.
            trial: what it showed.
            repaired: whether the divergence was gone.
        """
        if trial.how.screen:
            toggle += " (graphs interpreted)"
        self.ablations.append(Ablation(toggle, repaired, error_of(trial.judgement)))

    def repaired(self, trial: Trial) -> bool:
        """Return whether the divergence is gone in ``trial`` (another error is no repair)."""
        verdict, failing = trial.judgement.verdict, self.trial.judgement.verdict
        if failing is Verdict.ACCEPTS_INVALID:
            return verdict is Verdict.INVALID
        if verdict.is_bug:
            # A layout that differs besides is another matter than wrong values.
            return verdict is Verdict.METADATA and failing.kind == "values"
        return not self.evidence.shows(trial, self.count)

    def same_kind(self, trial: Trial) -> bool:
        """Return whether ``trial`` fails in the way that the failing one does."""
        return trial.judgement.verdict.kind == self.trial.judgement.verdict.kind

    @functools.cached_property
    def screens(self) -> bool:
        """Return whether the divergence shows without code generation."""
        trial = self.compiled(replace(self.how, screen=True))
        return not self.repaired(trial) and self.same_kind(trial)
