"""Share of the compiler's Python that cases of a corpus reach, by statements and branches.

A sample of the cases that campaigns have judged is judged once more, by workers that have a probe in each statement and
each branch of an expression (`fuzzcompile.compiler.source_probes`). Of a function's code, what runs on import alone has
no probe.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.compiler.source_probes import ROOT, LineWatch, watch_lines
from fuzzcompile.corpus.records import JudgedCase
from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.focus_plan import Span
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.model.stages import find_file_stage

# Relative to torch's folder.
_FILES = (
    "_dynamo/variables/*.py", "_dynamo/symbolic_convert.py", "_dynamo/guards.py", "_dynamo/side_effects.py",
    "_dynamo/output_graph.py", "_dynamo/codegen.py", "_dynamo/resume_execution.py",
    "_functorch/partitioners.py", "_functorch/_aot_autograd/*.py", "_subclasses/functional_tensor.py", "_decomp/*.py",
    "_refs/**/*.py", "_prims/__init__.py", "_prims_common/*.py", "_meta_registrations.py", "_subclasses/fake_impls.py",
    "_inductor/bounds.py", "_inductor/constant_folding.py", "_inductor/decomposition.py", "_inductor/dependencies.py",
    "_inductor/dtype_propagation.py", "_inductor/freezing.py", "_inductor/fx_passes/*.py", "_inductor/fx_utils.py",
    "_inductor/graph.py", "_inductor/index_propagation.py", "_inductor/inductor_prims.py", "_inductor/ir.py",
    "_inductor/loop_body.py", "_inductor/lowering.py", "_inductor/*_lowerings.py", "_inductor/memory.py",
    "_inductor/mkldnn_ir.py", "_inductor/ops_handler.py", "_inductor/optimize_indexing.py",
    "_inductor/pattern_matcher.py", "_inductor/scheduler.py", "_inductor/sizevars.py", "_inductor/codegen/common.py",
    "_inductor/codegen/cpp*.py", "_inductor/codegen/simd.py", "_inductor/codegen/wrapper.py",
    "_inductor/codegen/memory_planning.py",
)  # fmt: skip
# Keys of caches, logs, and what only other devices or distributed programs run.
_LEFT_OUT = {
    "autograd_cache.py", "aot_autograd_result.py", "logging_utils.py", "streams.py", "bucketing.py", "decomp_comms.py",
    "ddp_fusion.py", "fsdp.py", "low_contention_collectives.py", "micro_pipeline_tp.py", "overlap_scheduling.py",
    "overlap_manual_scheduling.py", "overlap_preserving_bucketer.py", "node_runtime_estimation.py", "spmd_check.py",
    "memory_estimator.py", "numeric_utils.py", "profile_guided_estimation.py", "cpp_wrapper_gpu.py",
    "cpp_wrapper_mps.py", "cpp_wrapper_cpu_array_ref.py", "distributed.py", "script_object.py",
}  # fmt: skip
_LEAST_THREADS = 1
_SEED = 0


def list_compiler_files() -> dict[str, str]:
    """The stage of each file of the compiler that a CPU runs, by its path from the folder that holds torch."""
    paths = {path for pattern in _FILES for path in (ROOT / "torch").glob(pattern) if path.name not in _LEFT_OUT}
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return {name: stage for name in names if (stage := find_file_stage(name)) is not None}


@dataclass(frozen=True)
class StageCode:
    """Statements and branches of a stage: how many there are, and how many were reached.

    ``missed`` has for each file the number of those that were not, the largest first.
    """

    stage: str
    known: int
    reached: int
    missed: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """The share reached, from 0 to 1."""
        return self.reached / self.known if self.known else 0.0

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {**vars(self), "share": self.share, "missed": dict(self.missed)}


@dataclass(frozen=True)
class CodeCoverage:
    """What ``cases`` of the ``judged`` cases of a corpus reach, by stage; ``failed`` could not be judged again."""

    stages: tuple[StageCode, ...]
    cases: int
    judged: int
    failed: int

    @property
    def total(self) -> StageCode:
        """All stages together."""
        missed = (row for stage in self.stages for row in stage.missed)
        known, reached = sum(each.known for each in self.stages), sum(each.reached for each in self.stages)
        return StageCode("all", known, reached, tuple(sorted(missed, key=lambda row: -row[1])))

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        counted = {"cases": self.cases, "judged": self.judged, "failed": self.failed}
        return {**counted, "share": self.total.share, "stages": [stage.to_json() for stage in self.stages]}


def measure_code(
    cases: Sequence[JudgedCase], conditions: Conditions, seconds: float, workers: int, say: Callable[[str], None]
) -> CodeCoverage:
    """Judge cases anew, in random order, for so many seconds at most, and count what they reach.

    Each is screened or judged in full as it was; no culprit is looked for. ``say`` is called with the progress.
    """
    order = random.Random(_SEED).sample(list(cases), len(cases))
    reached, done, failed = set[int](), 0, 0
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        plant = Path(folder, "probes.py")
        plant.write_text(f"from {__name__} import watch_compiler\nwatch_compiler()\n", encoding="utf-8")
        conditions = replace(conditions, plants=(*conditions.plants, plant))
        with open_pool(conditions, workers, least_threads=_LEAST_THREADS) as pool:
            files = pool.submit(list_probes).result()
            ends, waiting, running = time.monotonic() + seconds, iter(order), set[Future[tuple[int, ...]]]()
            while True:
                free = workers - len(running) if time.monotonic() < ends else 0
                for case in itertools.islice(waiting, free):
                    task = JudgeTask(path=f"{case.name}.py", source=case.source, screen=case.screened, seconds=0.0)
                    running.add(pool.submit(judge_with_probes, task))
                if not running:
                    break
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    done += 1
                    try:
                        reached.update(future.result())
                    except Exception:  # the case, or its worker, is lost: it is counted
                        failed += 1
                say(f"{done} of {len(order)} cases: {len(reached)} of {len(files)} statements and branches")
    return CodeCoverage(tuple(_count_stages(files, reached)), done, len(cases), failed)


def _count_stages(files: Sequence[str], reached: set[int]) -> list[StageCode]:
    stages = list_compiler_files()
    known, met = Counter(files), Counter(files[number] for number in reached)
    rows = []
    for stage in dict.fromkeys(stages.values()):
        own = [file for file in known if stages[file] == stage]
        missed = sorted(((file, known[file] - met[file]) for file in own), key=lambda row: -row[1])
        rows.append(StageCode(stage, sum(known[f] for f in own), sum(met[f] for f in own), tuple(missed)))
    return [row for row in rows if row.known]


# In a worker.

_watched: list[LineWatch] = []
_kept = contextlib.ExitStack()
_told: set[int] = set()


def watch_compiler() -> None:
    """Put a probe into every function of the compiler's files, for the life of this process."""
    _watched.append(_kept.enter_context(watch_lines(Span(file) for file in list_compiler_files())))


def list_probes() -> tuple[str, ...]:
    """The file of each probe, by its number."""
    return tuple(probe.span.file for probe in _watched[0].probes)


def judge_with_probes(task: JudgeTask) -> tuple[int, ...]:
    """Judge a case; return the numbers of the probes that no case of this process had reached before."""
    with contextlib.suppress(FuzzcompileError):  # what it compiled until then counts
        judge_file(task)
    new = _watched[0].reached - _told
    _told.update(new)
    return tuple(new)
