"""The files of the compiler that are mutated, by stage."""

from __future__ import annotations

from fuzzcompile.analyses.coverage import list_compiler_files
from fuzzcompile.model.stages import CUDAGRAPHS, DYNAMO, RUNTIME, STAGES

MUTATED_STAGES = tuple(stage for stage in STAGES if stage not in (DYNAMO, CUDAGRAPHS, RUNTIME))


def stage_of_files() -> dict[str, str]:
    """The stage of each file that is mutated, by its path from the folder that holds torch."""
    return {name: stage for name, stage in list_compiler_files().items() if stage in MUTATED_STAGES}
