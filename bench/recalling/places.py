"""The files of the compiler that are mutated, by stage."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile.model.stages import CUDAGRAPHS, DYNAMO, RUNTIME, STAGES, find_file_stage

# Relative to torch's folder.
_FILES = (
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
    "cpp_wrapper_mps.py", "cpp_wrapper_cpu_array_ref.py",
}  # fmt: skip
MUTATED_STAGES = tuple(stage for stage in STAGES if stage not in (DYNAMO, CUDAGRAPHS, RUNTIME))


def stage_of_files(root: Path) -> dict[str, str]:
    """The stage of each file that is mutated, by its path from ``root``, the folder that holds torch."""
    paths = {path for pattern in _FILES for path in (root / "torch").glob(pattern) if path.name not in _LEFT_OUT}
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    return {name: stage for name in names if (stage := find_file_stage(name)) is not None}
