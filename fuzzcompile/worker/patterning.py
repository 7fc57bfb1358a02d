"""Programs for rules of the compiler, made and tried on a worker."""

from __future__ import annotations

import torch

from fuzzcompile.compiler.catalogue import known_to
from fuzzcompile.compiler.programs import programs_of
from fuzzcompile.execution.worker import current_device, say
from fuzzcompile.generation.patterned import PatternProgram
from fuzzcompile.worker.tasks import PatternTask


def programs_for(task: PatternTask) -> tuple[PatternProgram, ...]:
    """Programs for the rules of a task, in its order; for each the best that were found in the time given.

    A rule without any program is one that nothing is known to call; a program with ``fires=False`` did not make its
    rule fire by itself, and near misses of it still may.
    """
    device = torch.device(current_device())
    rows = {(row.stage, row.name): row for row in known_to(device) if row.kind != "setting"}
    made: list[PatternProgram] = []
    for stage, rule in task.rules:
        say(f"looking for programs for {stage}:{rule}")
        if (stage, rule) in rows:
            made += programs_of(rows[stage, rule], device, task.seconds)
    return tuple(made)
