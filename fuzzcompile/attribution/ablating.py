"""Ablations: compiles with something switched off, and whether the divergence is gone with it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fuzzcompile.attribution.borders import borders_of
from fuzzcompile.attribution.culprit import Ablation
from fuzzcompile.attribution.steps import ReplayCount, Step, steps_of, suspects_of
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.oracle.judgement import error_of
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial

# What shows the bug: wrong values (or an error) as they are; a float64 step, in replay or before the graph passes
# (border), where the values are within rounding; or values beyond rounding but within default tolerances that float64
# proves wrong.
Evidence = Literal["values", "replay", "border", "suspicion"]


class OutOfTime(Exception):
    """No further compile may be begun."""


@dataclass
class Ablator:
    """Compiles the case of a failing ``trial`` in other ways, says whether that repairs it, and keeps the table.

    ``evidence`` says what shows the bug; after ``deadline`` (``time.monotonic()``) no compile is begun.
    """

    experiments: Experiments
    trial: Trial
    count: ReplayCount
    evidence: Evidence = "values"
    deadline: float | None = None
    ablations: list[Ablation] = field(default_factory=list)

    @property
    def how(self) -> Compilation:
        """How the failing trial was compiled: what an ablation is a change of."""
        return self.experiments.how

    @property
    def replays(self) -> bool:
        """Whether nothing but replays shows the divergence, so that every compile needs a ledger with snapshots."""
        return self.evidence in ("replay", "border")

    def attempt(self, how: Compilation, toggle: str) -> tuple[Trial, bool]:
        """Compile as ``how`` says; the trial, and whether it repairs the divergence. Noted under ``toggle``.

        Raises:
            OutOfTime: the deadline has passed.
        """
        trial = self.compiled(how)
        repaired = self.repaired(trial)
        self.note(toggle, trial, repaired)
        return trial, repaired

    def compiled(self, how: Compilation) -> Trial:
        """Compile as ``how`` says, and note nothing.

        Raises:
            OutOfTime: the deadline has passed.
        """
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime
        return self.experiments.trial(how)

    def note(self, toggle: str, trial: Trial, repaired: bool) -> None:
        """Write a line of the table."""
        if trial.how.screen:
            toggle += " (graphs interpreted)"
        self.ablations.append(Ablation(toggle, repaired, error_of(trial.judgement)))

    def repaired(self, trial: Trial) -> bool:
        """Whether the divergence is gone in ``trial`` (another error is no repair)."""
        verdict, failing = trial.judgement.verdict, self.trial.judgement.verdict
        if failing is Verdict.ACCEPTS_INVALID:
            return verdict is Verdict.INVALID
        if verdict.is_bug:
            # A layout that differs besides is another matter than wrong values.
            return verdict is Verdict.METADATA and failing.kind == "values"
        if self.evidence == "replay":
            return not changes_meaning(steps_of(trial.ledger, self.count))
        if self.evidence == "border":
            return not borders_of(trial.ledger, self.count)
        return not (self.evidence == "suspicion" and trial.judgement.suspicious)

    def same_kind(self, trial: Trial) -> bool:
        """Whether ``trial`` fails in the way that the failing one does."""
        return trial.judgement.verdict.kind == self.trial.judgement.verdict.kind

    @functools.cached_property
    def screens(self) -> bool:
        """Whether the divergence shows without code generation."""
        trial = self.compiled(replace(self.how, screen=True))
        return not self.repaired(trial) and self.same_kind(trial)


def changes_meaning(steps: Sequence[Step]) -> list[Step]:
    """Steps whose values in float64 prove that a rewrite changed what the graph computes."""
    return [step for step in suspects_of(steps) if not step.random and step.moves_float64]
