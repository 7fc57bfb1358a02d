"""The judgement on what eager mode does with ``DTensor``s in parts, which a compiled program does in the same way."""

from __future__ import annotations

import math
from dataclasses import replace

from fuzzcompile.compiler.operators.sharded_check import ShardingFault, may_shard, run_beside_wholes
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.diagnosis.attribution.culprit import Ablation, Attribution, Culprit
from fuzzcompile.diagnosis.decision import Decision
from fuzzcompile.diagnosis.oracle.judgement import reshape_like_eager
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.wrong_side import SideVerdict, agree, judge_beside
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.stages import ATEN

_SHOWS = "faults of eager mode's operators on them"


def judge_sharding(experiments: Experiments, trial: Trial, decision: Decision) -> tuple[SideVerdict, Trial] | None:
    """The side that is wrong where an operator on ``DTensor``s contradicts itself on whole tensors, and it matters.

    It does where the program gives other values in float64 once the operator gives what it does on whole tensors: in
    the trial that is returned both sides are measured against these. None if there is no such operator, for verdicts
    that are not about values, and where eager is not a side.

    Raises:
        RankLost: another process is gone.
    """
    about_values = decision.verdict.kind == "values" or not decision.verdict.is_bug
    made = experiments.runs
    if experiments.against != "eager" or not about_values or trial.observation.failure or not may_shard():
        return None
    seen, fault = run_beside_wholes(made.case, made.device)
    if seen.failure is not None and made.reference.failure is None:
        trial.ledger.unseen.note(Unseen("DTensors beside whole tensors", f"the run raises {seen.failure}", (), _SHOWS))
    if fault is None:
        return None
    exact, _ = run_beside_wholes(made.case, made.device, repaired=fault.operator)
    if exact.failure is not None:
        why = f"{fault}; with that repaired, eager mode raises {exact.failure}"
        return SideVerdict("both", why, proved=False, sharding=fault), trial
    right = reshape_like_eager(made.eager, exact)
    if agree(experiments, made.eager, right, exact):
        return None  # nothing that is seen depends on it
    errors = {each.name: each for each in judge_beside(experiments, right, exact, made.eager).comparisons}
    beside = judge_beside(experiments, right, exact, trial.observation).comparisons
    comparisons = tuple(each.with_errors_of_eager(errors.get(each.name, each)) for each in beside)
    judged = replace(trial, judgement=replace(trial.judgement, comparisons=comparisons))
    if agree(experiments, trial.observation, right, exact):
        return SideVerdict("eager", f"{fault}; with that repaired, compiled is right", sharding=fault), judged
    return SideVerdict("both", f"{fault}; with that repaired, compiled is wrong as eager is", sharding=fault), judged


def attribute_sharding_fault(fault: ShardingFault, attribution: Attribution, *, proved: bool) -> Attribution:
    """The attribution to an operator on ``DTensor``s, and the run that proves it."""
    details: DetailsJson = {"kind": "sharding", "call": fault.layouts}
    culprit = Culprit.from_operator(
        ATEN,
        fault.operator,
        (fault.source, fault.line),
        step=fault.step if math.isfinite(fault.step) else None,
        necessary=proved or None,
        details=details,
    )
    repaired = [Ablation(f"eager mode with {fault.operator} on whole tensors", True, None)] if proved else []
    return replace(attribution, culprit=culprit, ablations=repaired)
