"""Who looks at fault in one compile, as far as that shows without another one: what a reduction holds on to.

Nothing is proved here. Before the graph passes, operators are run beside their decompositions and fake tensors; behind
them, the IR and the kernels of the compile are looked at, if it was watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzcompile.attribution.before.checks import unchecked_operator
from fuzzcompile.attribution.before.dynamo import differing_call
from fuzzcompile.attribution.before.operators import check_operators, check_program
from fuzzcompile.attribution.before.search import suspects_among
from fuzzcompile.attribution.before.stages import functionalization_fault, partition_fault
from fuzzcompile.attribution.behind.errors import failure_of
from fuzzcompile.attribution.behind.values import Examined, examined
from fuzzcompile.attribution.behind.wrong import WrongKernel
from fuzzcompile.attribution.borders import borders_of
from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.attribution.proving import failing_rewrite, forms_shown
from fuzzcompile.attribution.steps import ReplayCount, Step, suspects_of
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.codegen_operators import code_operators
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.operators import operator_of
from fuzzcompile.compiler.labels import family_of
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.oracle.verdicts import Verdict
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


def kernels_suspected(trial: Trial) -> list[Suspect]:
    """Who may be at fault behind the graph passes, in a compile of which the kernels were watched."""
    looks = examined(trial.ledger, ReplayCount())
    if trial.observation.failure is not None:
        found = list(_failed(trial))
    elif trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
        found = [Suspect("lowering", _family(look.lowered, name)) for look in looks if (name := look.first_refused())]
    else:
        found = [one for look in looks for one in _wrong(look)]
    return list(dict.fromkeys(found))


def _failed(trial: Trial) -> Iterator[Suspect]:
    """Behind the passes an error is named by an operator of the graph or of the code; the stage is not sure yet."""
    failure = failure_of(trial)
    if failure is None:
        return
    lowered, failed = failure
    kernel = next((one for one in lowered.kernels if one.name == failed.kernel), None)
    code = code_operators(kernel.scheduled, kernel.writes[-1]) if kernel is not None and kernel.writes else []
    families = [*failed.operators, *(_family(lowered, name) for name in reversed(failed.nodes)), *code]
    for family in dict.fromkeys(families):
        yield from (Suspect(stage, family) for stage in BEHIND)


def _wrong(look: Examined) -> Iterator[Suspect]:
    operators = look.wrong_operators()
    yield from (Suspect("lowering", _family(look.lowered, one.node)) for one in operators)
    kernels = look.as_run.wrong_kernels()
    for wrong in kernels[:1]:
        yield from _kernel(wrong)
    if not operators and not kernels and look.wrong_outputs():
        yield Suspect("runtime", "wrapper")


def _kernel(wrong: WrongKernel) -> Iterator[Suspect]:
    if wrong.overwritten is not None:
        yield from (Suspect("scheduler", name) for name in ("buffer reuse", "order of kernels"))
        return
    if wrong.kernel.extern:
        yield Suspect("lowering", _family(wrong.lowered, wrong.nodes[-1]))
        return
    scheduled: Any = wrong.kernel.scheduled
    names = [name for buffer in (wrong.buffer, *wrong.kernel.writes) for name in code_operators(scheduled, buffer)]
    names += [_family(wrong.lowered, node) for node in wrong.kernel.nodes]
    for name in dict.fromkeys([*names, "fusion", "loop", "kernel call"]):
        yield from (Suspect(stage, name) for stage in ("codegen", "scheduler", "runtime"))


def _family(lowered: Lowered, node: str) -> str:
    return family_of_operator(operator_of(lowered.labels.get(lowered.producer(node), "")))
