"""A quick look at a case, and the signature that a reduction is locked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzcompile.attribution.ablating import changes_meaning
from fuzzcompile.attribution.proving import failing_rewrite, forms_shown
from fuzzcompile.attribution.steps import ReplayCount, steps_of, suspects_of
from fuzzcompile.case import Case
from fuzzcompile.deciding import confirmed, decide
from fuzzcompile.experiments import Experiments
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.labels import family_of
from fuzzcompile.inductor.ledger import Label
from fuzzcompile.inductor.session import Compilation
from fuzzcompile.oracle.judgement import wrong_values
from fuzzcompile.oracle.verdicts import Verdict

Keep = Literal["verdict", "culprit"]
_GRAPH_STAGES = ("pre_grad", "joint_graph", "post_grad")
# What is wrong before code generation shows without it.
_SCREENABLE = (*_GRAPH_STAGES, "dynamo", "functionalization", "decomposition", "fake_tensor")
_NEEDS_CODE = (Verdict.CRASH, Verdict.TIMEOUT, Verdict.NONDETERMINISTIC)


@dataclass(frozen=True)
class Probe:
    """A quick look at a case: one compile, no proof. ``suspect`` is the first suspected rewrite."""

    verdict: Verdict
    is_bug: bool
    suspect: Label | None
    compiles: int = 1
    screens: int = 0


@dataclass(frozen=True)
class Target:
    """The signature that a reduction is locked to."""

    verdict: str
    stage: str | None
    source: str | None
    families: tuple[str, ...]
    keep: Keep = "culprit"

    @classmethod
    def of(cls, report: Mapping[str, Any], keep: Keep = "culprit") -> Target:
        """The target that a report's culprit makes; ``keep`` the verdict only, if that is all that is asked for."""
        culprit = report.get("culprit") or {}
        families = tuple((culprit.get("family") or "").split("+"))
        return cls(report["verdict"], culprit.get("stage"), culprit.get("source"), families, keep)

    @property
    def screens(self) -> bool:
        """Whether it may show where graphs are interpreted instead of compiled."""
        return self.stage in _SCREENABLE and self.verdict not in _NEEDS_CODE

    def matches(self, probe: Probe) -> bool:
        """Whether the probe fails in this way.

        The verdict must be of the same class (wrong values, an error, metadata), and so must the rewrite that
        is suspected first.
        """
        if not probe.is_bug or probe.verdict.kind != Verdict(self.verdict).kind:
            return False
        if self.keep == "verdict":
            return True
        if self.stage in _GRAPH_STAGES:
            suspect = probe.suspect
            return (
                suspect is not None
                and suspect.stage == self.stage
                and suspect.source == self.source
                and family_of(suspect.rewrite) in self.families
            )
        return probe.suspect is None or probe.suspect.stage not in _GRAPH_STAGES


def probe(
    case: Case,
    device: torch.device,
    *,
    vetoes: Sequence[str] = (),
    screen: bool = False,
    thorough: bool = False,
    refuses: bool = True,
) -> Probe:
    """One compile and its replays: what a reduction asks of every candidate.

    With ``thorough`` the verdict is refined as triage does it, by further compiles where it takes them: for bugs that
    one compile does not tell from rounding. Without ``refuses``, that the compiler accepts what eager refuses is of no
    interest: a program that raises in eager is then not compiled.

    Raises:
        CaseError: ``make()`` fails.
    """
    initialise_patterns(device)
    experiments = Experiments(case, device, Compilation(vetoes=tuple(vetoes), screen=screen))
    if not refuses and experiments.eager.failure:
        return Probe(Verdict.INVALID, False, None, 0, 0)
    trial = experiments.trial()
    steps = steps_of(trial.ledger, ReplayCount())
    verdict = trial.judgement.verdict
    if thorough:
        decision = decide(experiments, trial, steps)
        if not screen and decision.verdict.is_bug:
            decision = confirmed(experiments, trial, decision)
        verdict = decision.verdict
    elif verdict is Verdict.ROUNDING and changes_meaning(steps):
        verdict = wrong_values(trial.judgement)
    suspects = suspects_of(steps, forms_shown(trial))
    suspect = suspects[0].label if suspects else None
    if trial.observation.failure is not None:
        suspect = failing_rewrite(trial) or suspect
    return Probe(verdict, verdict.is_bug, suspect, experiments.compiles, experiments.screens)
