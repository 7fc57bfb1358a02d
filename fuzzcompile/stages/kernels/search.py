"""The search behind the graph passes: one watched compile, then the stages in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.stage_names import LOWERING, RUNTIME
from fuzzcompile.stages.base import Stage
from fuzzcompile.stages.kernels.lost import lost_kernel
from fuzzcompile.trials.compiles import Trial


def behind_the_graphs(stages: Sequence[Stage], ablator: Ablator) -> Attribution | None:
    """Find the culprit behind the graph passes; None if the fault is not there, or nothing was found.

    Args:
        stages: those behind the graph passes, in the order of looking.
        ablator: makes the watched compile and the proofs.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    if ablator.screens:
        return None
    # If the kernels were not watched, only a setting that decides about a whole stage is evidence.
    trial = watched(ablator) or ablator.trial
    lost = lost_kernel(trial.ledger) if trial.observation.failure is None else None
    if lost is not None:
        return lost
    divergence = Divergence(ablator.experiments, trial, (), ablator.count)
    doubtful: Attribution | None = None
    for stage in stages:
        attribution = stage.prove(ablator, stage.suspects(divergence))
        if attribution is not None and (stage.name != LOWERING or attribution.contributors or _is_proved(attribution)):
            # An operator that looks wrong and is not proved wrong is a better answer than the wrapper alone.
            return doubtful if stage.name == RUNTIME and doubtful is not None else attribution
        doubtful = attribution or doubtful
    return doubtful


def watched(ablator: Ablator) -> Trial | None:
    """A compile whose IR and kernels are kept; None if the divergence does not show in it.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    for separate, name in ((True, "every loop nest a kernel"), (False, "kernels watched")):
        control = Control(separate=separate)
        trial = ablator.compiled(replace(ablator.how, kernels=True, record=True, screen=False, control=control))
        if not ablator.repaired(trial):
            return trial
        ablator.note(name, trial, True)
    return None


def _is_proved(attribution: Attribution) -> bool:
    return attribution.culprit is not None and bool(attribution.culprit.necessary)
