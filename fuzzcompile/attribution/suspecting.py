"""Who looks at fault in one compile, as far as that shows without another one: what a reduction holds on to.

Nothing is proved here. Before the graph passes, operators are run beside their decompositions and fake tensors; behind
them, the IR and the kernels of the compile are looked at, if it was watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuzzcompile.attribution.before.checks import unchecked_operator
from fuzzcompile.attribution.before.dynamo import differing_call
from fuzzcompile.attribution.before.operators import check_operators, check_program
from fuzzcompile.attribution.before.search import suspects_among
from fuzzcompile.attribution.before.stages import functionalization_fault, partition_fault
from fuzzcompile.attribution.borders import borders_of
from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.proving import failing_rewrite, forms_shown
from fuzzcompile.attribution.steps import ReplayCount, Step, suspects_of
from fuzzcompile.compiler.labels import family_of
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stages.kernels.search import BEHIND as BEHIND_STAGES
from fuzzcompile.trials.compiles import Experiments, Trial

GRAPHS = ("pre_grad", "joint_graph", "freezing", "post_grad")
BEFORE = ("dynamo", "functionalization", "decomposition", "fake_tensor", "partition")
BEHIND = ("lowering", "scheduler", "codegen", "runtime")
# How long the operators of a candidate are compared, which is small most of the time.
_SECONDS = 10.0


@dataclass(frozen=True)
class Suspect:
    """Stage and family, as a signature names them, and the source file where one is known."""

    stage: str
    family: str
    source: str | None = None

    @classmethod
    def of_label(cls, label: Label) -> Suspect:
        """The rewrite of a ledger."""
        return cls(label.stage, family_of(label.rewrite), label.source)

    @classmethod
    def of_culprit(cls, culprit: Culprit) -> Suspect:
        """What an attribution would name."""
        return cls(culprit.stage, culprit.family, culprit.source)


def rewrites_suspected(trial: Trial, steps: Sequence[Step]) -> list[Suspect]:
    """The rewrite that failed, then what replay suspects, then those that replay cannot judge."""
    failing = failing_rewrite(trial) if trial.observation.failure is not None else None
    labels = [] if failing is None else [failing]
    labels += [step.label for step in suspects_of(steps, forms_shown(trial))]
    if not labels:
        hidden = [step for step in steps if step.is_opaque or step.random or step.alias or step.is_semantic]
        labels = [*(step.label for step in hidden), *trial.ledger.unreplayed]
    return list(dict.fromkeys(Suspect.of_label(label) for label in labels))


def changes_a_graph(steps: Sequence[Step]) -> bool:
    """Whether a rewrite changed what a graph means: then the fault is not around the graph passes alone."""
    return any(step.is_semantic for step in suspects_of(steps))


def operators_suspected(stage: str, experiments: Experiments, trial: Trial) -> list[Suspect]:
    """Who may be at fault in a stage before the graph passes; no compile is made."""
    count = ReplayCount()
    if stage in ("decomposition", "fake_tensor") or trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
        return _operators(experiments, trial, count)
    if stage == "functionalization":
        found = functionalization_fault(trial, count)
        if found is None:
            return _operators(experiments, trial, count)
    elif stage == "partition":
        found = partition_fault(trial, count)
    else:
        call = differing_call(experiments, trial, count)
        return [] if call is None else [Suspect("dynamo", call)]
    return [] if found is None else [Suspect.of_culprit(found)]


def _operators(experiments: Experiments, trial: Trial, count: ReplayCount) -> list[Suspect]:
    """Operators that are something else than their kernels, and checks that nobody makes."""
    how, settings = trial.how, experiments.case.settings
    config = {**settings.inductor, "fallback_random": how.fallback_random, **(how.config or {})}
    checked = check_operators(trial.ledger, count, config, seconds=_SECONDS)
    failure = trial.observation.failure
    if failure is not None and failure.stage == "dynamo":
        checked.append(check_program(experiments, config, seconds=_SECONDS))
    faults = suspects_among(checked, trial.judgement.verdict)
    found = [Suspect.of_culprit(fault.culprit()) for fault in faults]
    if trial.judgement.verdict is Verdict.ACCEPTS_INVALID and not found:
        lost = unchecked_operator(trial, checked, check_program(experiments, config, seconds=_SECONDS))
        found += [] if lost is None else [Suspect.of_culprit(lost)]
    elif failure is None and not any(fault.proved for fault in faults):
        found += [Suspect.of_culprit(border.culprit()) for border in borders_of(trial.ledger, count)]
    return list(dict.fromkeys(found))


def kernels_suspected(experiments: Experiments, trial: Trial) -> list[Suspect]:
    """What may be at fault behind the graph passes, in a compile of which the kernels were watched."""
    divergence = Divergence(experiments, trial, (), ReplayCount())
    found = [suspect for stage in BEHIND_STAGES for suspect in stage.suspects(divergence)]
    return list(dict.fromkeys(Suspect(suspect.stage, suspect.family, suspect.source) for suspect in found))
