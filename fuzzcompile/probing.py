"""A quick look at a case, and the signature that a reduction is locked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzcompile.attribution.ablating import changes_meaning
from fuzzcompile.attribution.attribute import failing_rewrite, forms_shown
from fuzzcompile.attribution.steps import ReplayCount, steps_of, suspects_of
from fuzzcompile.case import Case
from fuzzcompile.experiments import Experiments
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.labels import family_of
from fuzzcompile.inductor.ledger import Label
from fuzzcompile.inductor.session import Compilation
from fuzzcompile.oracle.judgement import wrong_values
from fuzzcompile.oracle.verdicts import Verdict

_GRAPH_STAGES = ("pre_grad", "joint_graph", "post_grad")


@dataclass(frozen=True)
class Probe:
    """A quick look at a case: one compile, no proof. ``suspect`` is the first suspected rewrite."""

    verdict: Verdict
    is_bug: bool
    suspect: Label | None


@dataclass(frozen=True)
class Target:
    """The signature that a reduction is locked to."""

    verdict: str
    stage: str | None
    source: str | None
    families: tuple[str, ...]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Target:
        """The target that a report's culprit makes."""
        culprit = report.get("culprit") or {}
        families = tuple((culprit.get("family") or "").split("+"))
        return cls(report["verdict"], culprit.get("stage"), culprit.get("source"), families)

    def matches(self, probe: Probe) -> bool:
        """Whether the probe fails in this way.

        The verdict must be of the same class (wrong values, an error, metadata), and so must the rewrite that
        is suspected first.
        """
        if not probe.is_bug or probe.verdict.kind != Verdict(self.verdict).kind:
            return False
        if self.stage in _GRAPH_STAGES:
            suspect = probe.suspect
            return (
                suspect is not None
                and suspect.stage == self.stage
                and suspect.source == self.source
                and family_of(suspect.rewrite) in self.families
            )
        return probe.suspect is None


def probe(case: Case, device: torch.device, *, vetoes: Sequence[str] = (), screen: bool = False) -> Probe:
    """One compile and its replays: what a reduction asks of every candidate.

    Raises:
        CaseError: ``make()`` fails.
    """
    initialise_patterns(device)
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes), screen=screen))
    trial = experiments.trial()
    steps = steps_of(trial.ledger, ReplayCount())
    verdict = trial.judgement.verdict
    if verdict is Verdict.ROUNDING and changes_meaning(steps):
        verdict = wrong_values(trial.judgement)
    suspects = suspects_of(steps, forms_shown(trial))
    suspect = suspects[0].label if suspects else None
    if trial.observation.failure is not None:
        suspect = failing_rewrite(trial) or suspect
    return Probe(verdict, verdict.is_bug, suspect)
