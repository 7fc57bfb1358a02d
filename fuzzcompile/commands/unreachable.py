"""Why some rewrite rules and passes cannot be reached, each with a reason that was checked in the source of torch 2.13.

A reason that hangs on a setting holds only as long as no toggle of the generator sets it, and one that hangs on the CPU
only there. What a corpus has reached all the same is shown as reached: it would refute the reason.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fuzzcompile.compiler.catalogue import Known
from fuzzcompile.generation.toggles import TOGGLES


@dataclass(frozen=True)
class Reason:
    """Why the rules of some names, globs allowed, cannot be reached in a stage.

    ``setting`` is the entry of Inductor's config that would switch them on (of a dictionary with the key behind a
    colon), ``device`` the type of device on which the reason holds; None where neither matters. ``group`` is a short
    title under which reasons of a kind are summed up.
    """

    group: str
    stage: str
    names: str
    why: str
    setting: str | None = None
    device: str | None = None

    def holds(self, known: Known, device: str) -> bool:
        """Whether this is a reason against reaching ``known`` on that type of device."""
        return (
            known.kind in ("pass", "pattern")
            and known.stage == self.stage
            and any(fnmatch.fnmatchcase(known.name, name) for name in self.names.split())
            and self.device in (None, device)
            and (self.setting is None or self.setting not in _switched_on())
        )


def reason_for(known: Known, device: str) -> Reason | None:
    """The reason why a rule or pass cannot be reached on that type of device; None where there is none."""
    return next((reason for reason in REASONS if reason.holds(known, device)), None)


@cache
def _switched_on() -> frozenset[str]:
    """Settings that some toggle of the generator changes."""
    entries: list[tuple[str, Any]] = [entry for toggle in TOGGLES for entry in toggle.options]
    inside = {f"{name}:{key}" for name, value in entries if isinstance(value, Mapping) for key in value}
    return frozenset({name for name, _ in entries} | inside)


_GPU = "needs a GPU"
_OFF = "switched off by default"
_COLLECTIVES = "collectives of several processes"
_EMPTY = "no rule registered"
_CONTAINER = "booked under other names"
_OWN = "the user's own pass"
_QUANTISED = "quantised models"
_NOT_IN_GRAPH = "never in a graph"
_TAKEN = "another pattern comes first"

_PREDISPATCH = """
    _run_pre_dispatch_passes normalization_pass_aten normalize_node_kwargs_pass remove_noop_pass relu_nan_to_num
    fuse_chunk_reshape_concat_pass fuse_chunk_squeeze_cat_pass merge_concats_pass fuse_split_linear_add_pass
    remove_reshape_pass fuse_parallel_linear_pass remove_split_ops_pass stack_to_unsqueeze_pass
    fuse_chunk_reshape_unsqueeze_concat_pass fuse_split_getitem_squeeze_cat use_triton_* use_matmul_*
"""
_TABLES_WITHOUT_RULES = """
    merge_stack_tahn_unbind_pass merge_splits_pass_aten split_cat_pass_aten unbind_stack_pass_aten
    merge_getitem_cat_pass_aten merge_stack_tahn_unbind_pass_aten mutate_cat_pass_aten
    remove_split_with_size_one_pass_aten
"""
_CONCATENATED = """
    matmul_fuse_pattern matmul_fuse_pattern_two addmm_fuse_pattern_second int8_woq_fusion_pattern woq_int8
"""

_TORCHAO = (
    "Looks for operators of quantized_decomposed (or what other rules make of them), which torchao's PT2E quantisation "
    "puts into models; torch itself has no quantiser that does."
)

REASONS: tuple[Reason, ...] = (
    # -- pre_grad ------------------------------------------------------------------------------------
    Reason(
        _OFF, "pre_grad", _PREDISPATCH,
        "Runs only with config.is_predispatch, which is off and nothing in torch sets; torch ships these passes as "
        "functions that return None and as empty tables.",
        setting="is_predispatch",
    ),
    Reason(
        _EMPTY, "pre_grad", _TABLES_WITHOUT_RULES,
        "A table of patterns in which torch registers none: the option that names it runs nothing.",
    ),
    Reason(
        _CONTAINER, "pre_grad", "fuse_fx",
        "It calls sink_cat_after_pointwise, fuse_conv_bn and others, each booked under its own name, and changes "
        "nothing itself.",
    ),
    Reason(
        _GPU, "pre_grad", "linear_permute_fusion permute_linear_fusion permute_matmul_fusion",
        "Run only with config.permute_fusion, which is off, and where no input is on the CPU.",
        device="cpu",
    ),
    Reason(
        _NOT_IN_GRAPH, "pre_grad", "remove_identity fuse_conv_bn",
        "Looks for nn.Identity or a convolution called as a module, and dynamo puts no call of a module into a graph "
        "(inline_inbuilt_nn_modules is always on).",
    ),
    Reason(
        _OFF, "pre_grad", "efficient_conv_bn_eval_*",
        "Its rules refuse every match while config.efficient_conv_bn_eval_fx_passes is off, which it is by default.",
        setting="efficient_conv_bn_eval_fx_passes",
    ),
    Reason(
        _NOT_IN_GRAPH, "pre_grad",
        "efficient_conv_bn_eval_graph_transform efficient_conv_bn_eval_graph_transform_decomposed",
        "Looks for a batch norm called as a module or as an ATen operator; dynamo's graphs hold F.batch_norm.",
    ),
    Reason(_QUANTISED, "pre_grad", "quant_lift_up", _TORCHAO),
    Reason(_OWN, "pre_grad", "pre_grad_custom_pass", "Runs config.pre_grad_custom_pass; by default there is none."),
    # -- joint_graph ---------------------------------------------------------------------------------
    Reason(
        _CONTAINER, "joint_graph", "canonicalize_aten_ir_passes",
        "It calls canonicalize_quant_mapping, which is booked under its own name, and nothing else.",
    ),
    Reason(
        _OWN, "joint_graph", "joint_custom_pre_pass joint_custom_post_pass",
        "Runs config.joint_custom_pre_pass or joint_custom_post_pass; by default there is none.",
    ),
    Reason(
        _OFF, "joint_graph", "chunk", "Runs only with config.auto_chunker.enable, which is off by default.",
        setting="auto_chunker.enable",
    ),
    Reason(
        _GPU, "joint_graph", "mm_pattern_* addmm_pattern_* bmm_pattern_*",
        "Padding of matrix products: pad_mm.can_pad refuses every product that is not on CUDA or XPU.",
        device="cpu",
    ),
    Reason(
        _GPU, "joint_graph", "fuse_offset_creation_pass",
        "Fuses inductor_prims.rand_eager_offset, which replace_random makes only on CUDA and with "
        "config.align_random_eager, off by default.",
        device="cpu",
    ),
    Reason(
        _TAKEN, "joint_graph", "_sfdp_pattern_3_inference _sfdp_pattern_3_half_inference",
        "Without dropout it is the graph of _sfdp_pattern_1, which is tried before it and has the same check.",
    ),
    Reason(
        _TAKEN, "joint_graph", "_sfdp_pattern_12_inference _sfdp_pattern_12_half_inference",
        "Without dropout it is the graph of _sfdp_pattern_11 (in half precision of _sfdp_pattern_7 too), which is "
        "tried before it.",
    ),
    Reason(
        _TAKEN, "joint_graph",
        "_sfdp_pattern_16_bs1_inference _sfdp_pattern_16_half_bs1_inference _sfdp_pattern_16_bs1_training "
        "_sfdp_pattern_16_half_bs1_training",
        "At batch 1 no copy stands behind its permutes, so that _sfdp_pattern_5 (with dropout _sfdp_pattern_6), which "
        "is tried before it, matches the part inside them.",
    ),
    # -- partition -----------------------------------------------------------------------------------
    Reason(
        _CONTAINER, "partition", "default_partition",
        "Inductor calls min_cut_rematerialization_partition, which calls this one where nothing is left for a backward "
        "graph; both are booked under the name that Inductor calls.",
    ),
    # -- freezing ------------------------------------------------------------------------------------
    Reason(
        _CONTAINER, "freezing", "freezing_passes",
        "It runs constant folding and the tables of patterns, each booked under its own name.",
    ),
    Reason(
        _CONTAINER, "freezing", "record_has_frozen_params",
        "It sets a mark on the module and leaves the graph as it is.",
    ),
    Reason(
        _QUANTISED, "freezing",
        "dequant_promotion qlinear_weight_prepack qconv_weight_prepack qconv linear_dynamic_fp16_weight_prepack",
        _TORCHAO,
    ),
    Reason(
        _CONTAINER, "freezing", "pass_pattern_5",
        "It repeats rules of the tables before it, under which they are listed and counted.",
    ),
    Reason(
        _OFF, "freezing", "pass_pattern_4",
        "Of its rules one needs config.cpp.enable_concat_linear, off by default; the others are those of the table "
        "before it, under which they are listed and counted.",
        setting="cpp.enable_concat_linear",
    ),
    Reason(
        _OFF, "freezing", _CONCATENATED,
        "On the CPU its check refuses every match while config.cpp.enable_concat_linear is off, as it is by default.",
        setting="cpp.enable_concat_linear", device="cpu",
    ),
    Reason(
        _NOT_IN_GRAPH, "freezing", "mkldnn_rnn_layer",
        "Packs the weights of nn.LSTM, which dynamo does not trace: its allow_rnn is off by default.",
    ),
    # -- post_grad -----------------------------------------------------------------------------------
    Reason(
        _OWN, "post_grad", "post_grad_custom_post_pass",
        "Runs config.post_grad_custom_post_pass; by default there is none.",
    ),
    Reason(
        _OFF, "post_grad", "grouped_gemm_pass",
        "Runs only with config.cpp.enable_grouped_gemm_template, which is off by default.",
        setting="cpp.enable_grouped_gemm_template",
    ),
    Reason(
        _OFF, "post_grad", "concat_linear_woq_int4",
        "Runs only with config.cpp.enable_concat_linear, which is off by default.",
        setting="cpp.enable_concat_linear",
    ),
    Reason(
        _NOT_IN_GRAPH, "post_grad", "remove_profiler_ops",
        "Removes record_function, which dynamo leaves out of graphs: its capture_profiler_record_function is off by "
        "default.",
    ),
    Reason(_EMPTY, "post_grad", "pass_pattern_0", "A table of patterns in which torch registers none."),
    Reason(
        _EMPTY, "post_grad", "shape_padding_multiplier pad_aten_mm_pass",
        "A table of patterns in which torch registers none: these options only steer the padding of matrix products on "
        "GPUs.",
    ),
    Reason(
        _GPU, "post_grad", "prepare_softmax_pattern",
        "Its check (online softmax) refuses every match that is not on CUDA or XPU.", device="cpu",
    ),
    Reason(
        _GPU, "post_grad", "unfuse_bias_add_to_pointwise",
        "Its check should_prefer_unfused_addmm refuses every match that is not on a GPU.", device="cpu",
    ),
    Reason(
        _GPU, "post_grad", "move_constructors_to_cuda", "Moves constants to a GPU of the graph.", device="cpu",
    ),
    Reason(
        _GPU, "post_grad", "decompose_triton_kernel_wrapper_functional",
        "Decomposes calls of Triton kernels that the user wrote; torch for the CPU brings no Triton.", device="cpu",
    ),
    Reason(
        _OFF, "post_grad", "b2b_gemm_pass b2b_gemm_handler",
        "Runs only with config.b2b_gemm_pass, which is off by default.", setting="b2b_gemm_pass",
    ),
    Reason(_QUANTISED, "post_grad", "qconv qconv_binary qmaxpool2d qcat qreshape", _TORCHAO),
    Reason(
        _COLLECTIVES, "post_grad",
        "micro_pipeline_tp_pass fuse_ddp_communication decomp_comms dedup_reduce_scatters bucket_reduce_scatters "
        "bucket_all_reduce bucket_all_gathers overlap_scheduling replace_collectives_with_low_contention",
        "Rewrites collectives of torch.distributed, which one process does not issue, and is off by default.",
    ),
    Reason(
        _COLLECTIVES, "post_grad", "stable_topological_sort",
        "Sorts the graph after collectives were put into buckets, which is off by default.",
    ),
    Reason(
        _CONTAINER, "post_grad", "fix_auto_functionalized_dtype_views",
        "It edits metadata of auto_functionalized nodes, which says what to copy, and leaves the graph as it is.",
    ),
    Reason(
        _OFF, "post_grad", "GroupLinearFusion",
        "Calls torch.ops.fbgemm.gmm, which torch does not bring, and runs only as group_linear in "
        "config.post_grad_fusion_options, which is not there by default.",
        setting="post_grad_fusion_options:group_linear",
    ),
)  # fmt: skip
