"""The other process of a case that is judged with stored graphs: it compiles and runs it, and stores what it can.

Called with the case file, the folder, the device, the number of threads, and plants.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fuzzcompile.compiler.compile_changes import GraphsFromDisk, Veto
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.diagnosis.trials.case_runs import CaseRuns, CompileCounts
from fuzzcompile.diagnosis.trials.experiments import run_compiled
from fuzzcompile.diagnosis.trials.stored_graphs import ARTIFACTS
from fuzzcompile.diagnosis.worker.judge import open_case, prepare
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.pool.worker import get_current_device, use_device


def main(path: str, folder: str, device: str, threads: str, *plants: str) -> None:
    """Compile and run a case with torch's caches on disk, and write what they hold then below ``folder``."""
    use_device(device)
    prepare(Conditions(device=device, plants=tuple(map(Path, plants))), int(threads))
    placed = torch.device(get_current_device())
    with open_case(JudgeTask(path=path), placed) as (_, case):
        how = Compilation((Veto(()), GraphsFromDisk(folder=Path(folder, "filled"))))
        run_compiled(CaseRuns(case, placed), how, CompileCounts())
        stored = torch.compiler.save_cache_artifacts()
    if stored is not None:
        Path(folder, ARTIFACTS).write_bytes(stored[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
