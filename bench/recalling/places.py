"""The files of the compiler that are mutated, by stage."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile import stage_names as stages

# Relative to torch's folder; the last matching row counts. A file that serves several stages counts for one.
_FILES: tuple[tuple[str, str], ...] = (
    ("_inductor/fx_passes/*.py", stages.POST_GRAD),
    ("_inductor/fx_utils.py", stages.POST_GRAD),
    ("_inductor/fx_passes/pre_grad.py", stages.PRE_GRAD),
    ("_inductor/fx_passes/split_cat.py", stages.PRE_GRAD),
    ("_inductor/fx_passes/group_batch_fusion.py", stages.PRE_GRAD),
    ("_inductor/fx_passes/efficient_conv_bn_eval.py", stages.PRE_GRAD),
    ("_inductor/fx_passes/joint_graph.py", stages.JOINT_GRAPH),
    ("_inductor/fx_passes/fuse_attention.py", stages.JOINT_GRAPH),
    ("_inductor/fx_passes/pad_mm.py", stages.JOINT_GRAPH),
    ("_inductor/fx_passes/replace_random.py", stages.JOINT_GRAPH),
    ("_inductor/fx_passes/misc_patterns.py", stages.JOINT_GRAPH),
    ("_inductor/fx_passes/apply_gumbel_max_trick.py", stages.JOINT_GRAPH),
    ("_inductor/constant_folding.py", stages.JOINT_GRAPH),
    ("_inductor/pattern_matcher.py", stages.JOINT_GRAPH),
    ("_inductor/freezing.py", stages.FREEZING),
    ("_inductor/fx_passes/binary_folding.py", stages.FREEZING),
    ("_inductor/fx_passes/freezing_patterns.py", stages.FREEZING),
    ("_functorch/partitioners.py", stages.PARTITION),
    ("_functorch/_aot_autograd/*.py", stages.FUNCTIONALIZATION),
    ("_subclasses/functional_tensor.py", stages.FUNCTIONALIZATION),
    ("_decomp/*.py", stages.DECOMPOSITION),
    ("_refs/**/*.py", stages.DECOMPOSITION),
    ("_prims/__init__.py", stages.DECOMPOSITION),
    ("_prims_common/*.py", stages.DECOMPOSITION),
    ("_inductor/decomposition.py", stages.DECOMPOSITION),
    ("_meta_registrations.py", stages.FAKE_TENSOR),
    ("_subclasses/fake_impls.py", stages.FAKE_TENSOR),
    ("_inductor/lowering.py", stages.LOWERING),
    ("_inductor/*_lowerings.py", stages.LOWERING),
    ("_inductor/ir.py", stages.LOWERING),
    ("_inductor/mkldnn_ir.py", stages.LOWERING),
    ("_inductor/graph.py", stages.LOWERING),
    ("_inductor/loop_body.py", stages.LOWERING),
    ("_inductor/inductor_prims.py", stages.LOWERING),
    ("_inductor/index_propagation.py", stages.LOWERING),
    ("_inductor/ops_handler.py", stages.LOWERING),
    ("_inductor/sizevars.py", stages.LOWERING),
    ("_inductor/scheduler.py", stages.SCHEDULER),
    ("_inductor/dependencies.py", stages.SCHEDULER),
    ("_inductor/memory.py", stages.SCHEDULER),
    ("_inductor/dtype_propagation.py", stages.CODEGEN),
    ("_inductor/optimize_indexing.py", stages.CODEGEN),
    ("_inductor/bounds.py", stages.CODEGEN),
    ("_inductor/codegen/common.py", stages.CODEGEN),
    ("_inductor/codegen/cpp*.py", stages.CODEGEN),
    ("_inductor/codegen/simd.py", stages.CODEGEN),
    ("_inductor/codegen/wrapper.py", stages.CODEGEN),
    ("_inductor/codegen/memory_planning.py", stages.CODEGEN),
)
# Keys of caches, logs, and what only other devices or distributed programs run.
_LEFT_OUT = {
    "autograd_cache.py", "aot_autograd_result.py", "logging_utils.py", "streams.py", "bucketing.py", "decomp_comms.py",
    "ddp_fusion.py", "fsdp.py", "low_contention_collectives.py", "micro_pipeline_tp.py", "overlap_scheduling.py",
    "overlap_manual_scheduling.py", "overlap_preserving_bucketer.py", "node_runtime_estimation.py", "spmd_check.py",
    "memory_estimator.py", "numeric_utils.py", "profile_guided_estimation.py", "cpp_wrapper_gpu.py",
    "cpp_wrapper_mps.py", "cpp_wrapper_cpu_array_ref.py",
}  # fmt: skip
MUTATED_STAGES = tuple(stage for stage in stages.STAGES if stage in {stage for _, stage in _FILES})


def stage_of_files(root: Path) -> dict[str, str]:
    """The stage of each file that is mutated, by its path from ``root``, the folder that holds torch."""
    found = {
        path.relative_to(root).as_posix(): stage
        for pattern, stage in _FILES
        for path in sorted((root / "torch").glob(pattern))
        if path.name not in _LEFT_OUT
    }
    return dict(sorted(found.items()))
