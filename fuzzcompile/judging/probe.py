"""A quick look at a case, and the signature that a reduction is locked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzcompile.attribution.ablating import changes_meaning
from fuzzcompile.attribution.steps import ReplayCount, Step, steps_of
from fuzzcompile.attribution.suspecting import (
    BEFORE,
    BEHIND,
    GRAPHS,
    Suspect,
    changes_a_graph,
    kernels_suspected,
    operators_suspected,
    rewrites_suspected,
)
from fuzzcompile.case import Case
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.judging.decision import confirmed, decide
from fuzzcompile.judging.report import normalised
from fuzzcompile.oracle.judgement import wrong_values
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.trials.compiles import Experiments, Trial

Keep = Literal["verdict", "culprit"]
# What is wrong before code generation shows without it.
_SCREENABLE = (*GRAPHS, *BEFORE)
_NEEDS_CODE = (Verdict.CRASH, Verdict.TIMEOUT, Verdict.NONDETERMINISTIC)
# Of an error's message what says which error it is: sizes and names come later.
_MESSAGE = 60


@dataclass(frozen=True)
class Probe:
    """A quick look at a case: one compile, no proof.

    ``suspects`` are who looks at fault, most telling first, in the stages that were asked about. ``error`` is what was
    raised, without what changes from case to case.
    """

    verdict: Verdict
    is_bug: bool
    suspects: tuple[Suspect, ...] = ()
    error: str | None = None
    compiles: int = 1
    screens: int = 0

    @property
    def suspect(self) -> Suspect | None:
        """The first one suspected."""
        return self.suspects[0] if self.suspects else None


@dataclass(frozen=True)
class Target:
    """The signature that a reduction is locked to.

    ``named`` says that somebody is at fault by name; otherwise ``error`` tells one error from another, and all else is
    held by stage.
    """

    verdict: str
    stage: str | None
    source: str | None
    families: tuple[str, ...]
    keep: Keep = "culprit"
    named: bool = True
    error: str | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any], keep: Keep = "culprit") -> Target:
        """The target that a report's culprit makes; ``keep`` the verdict only, if that is all that is asked for."""
        culprit = report.get("culprit") or {}
        families = tuple((culprit.get("family") or "").split("+"))
        stage, named = culprit.get("stage"), culprit.get("rewrite") is not None
        # The signature of an error that is nobody's: stage, type and message.
        parts = str(report.get("signature") or "").split(":", 2)
        error = None
        if not named and Verdict(report["verdict"]).kind == "error" and len(parts) == 3 and parts[1] != "-":
            error = f"{parts[1]}: {parts[2]}"[:_MESSAGE]
        return cls(report["verdict"], stage, culprit.get("source"), families, keep, named, error)

    @property
    def screens(self) -> bool:
        """Whether it may show where graphs are interpreted instead of compiled."""
        return self.stage in _SCREENABLE and self.verdict not in _NEEDS_CODE

    @property
    def looks(self) -> str | None:
        """The stage around the graph passes in which somebody is held; None if there is none."""
        held = self.keep == "culprit" and self.named and self.stage in (*BEFORE, *BEHIND)
        return self.stage if held else None

    def matches(self, probe: Probe) -> bool:
        """Whether the probe fails in this way.

        The verdict must be of the same class (wrong values, an error, metadata). For ``keep`` "culprit" so must be who
        is suspected: among the rewrites the first, around the graph passes any, since nothing tells there who is to
        blame for all that looks odd.
        """
        if not probe.is_bug or probe.verdict.kind != Verdict(self.verdict).kind:
            return False
        if self.keep == "verdict":
            return True
        if self.stage in GRAPHS:
            return probe.suspect is not None and self._is(probe.suspect)
        if self.looks is not None:
            return any(self._is(one) for one in probe.suspects)
        if self.error is not None and probe.error is not None and probe.error[:_MESSAGE] != self.error:
            return False
        return probe.suspect is None or probe.suspect.stage not in GRAPHS

    def _is(self, suspect: Suspect) -> bool:
        """Whether it is the same culprit; behind the graph passes the file is not known before there is a proof."""
        if suspect.stage != self.stage or suspect.family not in self.families:
            return False
        return self.stage in BEHIND or suspect.source == self.source or suspect.source is None


def probe(
    case: Case,
    device: torch.device,
    *,
    vetoes: Sequence[str] = (),
    screen: bool = False,
    thorough: bool = False,
    target: Target | None = None,
) -> Probe:
    """One compile and its replays: what a reduction asks of every candidate.

    With ``thorough`` the verdict is refined as triage does it, by further compiles where it takes them: for bugs that
    one compile does not tell from rounding. With a ``target``, those are looked for whom it may name: a kernel or an
    operator takes a closer look than a rewrite. Unless it is one, that the compiler accepts what eager refuses is of no
    interest: a program that raises in eager is then not compiled.

    Raises:
        CaseError: ``make()`` fails.
    """
    initialise_patterns(device)
    looks = target.looks if target is not None else None
    how = Compilation(vetoes=tuple(vetoes), screen=screen, kernels=looks in BEHIND and not screen)
    experiments = Experiments(case, device, how)
    if target is not None and target.verdict != Verdict.ACCEPTS_INVALID and experiments.eager.failure:
        return Probe(Verdict.INVALID, False, compiles=0)
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
    failure = trial.observation.failure
    return Probe(
        verdict,
        verdict.is_bug,
        tuple(_suspects(looks, experiments, trial, steps)) if verdict.is_bug else (),
        None if failure is None else f"{failure.type_name}: {normalised(failure.message)}",
        experiments.compiles,
        experiments.screens,
    )


def _suspects(looks: str | None, experiments: Experiments, trial: Trial, steps: Sequence[Step]) -> list[Suspect]:
    """Who looks at fault; a rewrite that changes what a graph means excuses what is around the graph passes."""
    rewrites = rewrites_suspected(trial, steps)
    if looks is None or (rewrites and changes_a_graph(steps)):
        return rewrites
    behind = looks in BEHIND
    around = kernels_suspected(experiments, trial) if behind else operators_suspected(looks, experiments, trial)
    return [*around, *rewrites]
