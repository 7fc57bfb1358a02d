"""The search behind the graph passes: one watched compile, then the stages in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.stages.base import Stage
from fuzzcompile.stages.codegen import Codegen
from fuzzcompile.stages.cudagraphs import Cudagraphs
from fuzzcompile.stages.lowering import Lowering
from fuzzcompile.stages.runtime import Runtime
from fuzzcompile.stages.scheduler import Scheduler
from fuzzcompile.trials.compiles import Trial

CUDAGRAPHS, LOWERING, SCHEDULER, CODEGEN, RUNTIME = Cudagraphs(), Lowering(), Scheduler(), Codegen(), Runtime()
# The order of looking: the one setting that decides about a stage alone, then the IR, the kernels, the outputs.
BEHIND: tuple[Stage[Any], ...] = (CUDAGRAPHS, LOWERING, SCHEDULER, CODEGEN, RUNTIME)


def behind_the_graphs(ablator: Ablator) -> Attribution | None:
    """Name what is at fault behind the graph passes; None if the fault is not there, or nothing was found.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    if ablator.screens:
        return None
    trial = watched(ablator)
    if trial is None:  # recording is all that a compile without watched kernels can speak against
        divergence = Divergence(ablator.experiments, ablator.trial, (), ablator.count)
        return CUDAGRAPHS.prove(ablator, CUDAGRAPHS.suspects(divergence))
    divergence = Divergence(ablator.experiments, trial, (), ablator.count)
    doubtful: Attribution | None = None
    for stage in BEHIND:
        found = stage.prove(ablator, stage.suspects(divergence))
        if found is not None and (stage is not LOWERING or found.contributors or _is_proved(found)):
            # An operator that looks wrong and is not proved wrong is a better answer than the wrapper alone.
            return doubtful if stage is RUNTIME and doubtful is not None else found
        doubtful = found or doubtful
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


def _is_proved(found: Attribution) -> bool:
    return found.culprit is not None and bool(found.culprit.necessary)
