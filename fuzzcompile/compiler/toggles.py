"""Settings of ``torch._inductor.config`` that switch passes or change numbers, and what they are set to."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"\bconfig\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_LONGEST = 60
# Beyond what the conditions around passes name: what changes numbers, layouts, memory or the choice of kernels.
_OF_STAGE: Mapping[str, str] = {
    "pre_grad": """
        use_pre_grad_passes add_pre_grad_passes remove_pre_grad_passes split_cat_fx_passes batch_fusion
        group_fusion pre_grad_fusion_options efficient_conv_bn_eval_fx_passes apply_gumbel_max_trick
    """,
    "decomposition": """
        selective_decompose triton.decompose_sort_ops
    """,
    "joint_graph": """
        use_joint_graph_passes disabled_passes shape_padding force_shape_pad pad_channels_last fallback_random
        force_fuse_int_mm_with_mul use_mixed_mm mixed_mm_choice
    """,
    "partition": """
        custom_partitioner_fn custom_should_partition_ops
    """,
    "freezing": """
        freezing freezing_discard_parameters cpp.weight_prepack enable_linear_binary_folding
    """,
    "post_grad": """
        use_post_grad_passes post_grad_fusion_options decompose_mem_bound_mm dce online_softmax
        keep_addmm_fused_for_half_dtypes enable_auto_functionalized_v2
    """,
    "lowering": """
        emulate_precision_casts emulate_precision_casts_on_saved_tensors layout_optimization
        force_layout_optimization keep_output_stride implicit_fallbacks fallback_by_default split_reductions
        unroll_reductions_threshold max_pointwise_cat_inputs force_pointwise_cat conv_1x1_as_mm
        comprehensive_padding max_autotune max_autotune_gemm max_autotune_gemm_backends max_autotune_pointwise
        fallback_embedding_bag_byte_unpack optimize_scatter_upon_const_tensor constant_and_index_propagation
        cpp.fallback_scatter_reduce_sum cpp.use_two_step_variance_threshold deterministic
    """,
    "scheduler": """
        epilogue_fusion prologue_fusion max_fusion_size aggressive_fusion inplace_buffers allow_buffer_reuse
        memory_planning combo_kernels loop_ordering_after_fusion reorder_for_peak_memory _pre_fusion_custom_pass
        _post_fusion_custom_pass cpp.max_horizontal_fusion_size
    """,
    "codegen": """
        cpp.simdlen cpp.enable_floating_point_contract_flag cpp.enable_unsafe_math_opt_flag
        cpp.enable_loop_tail_vec cpp.enable_tiling_heuristics cpp.use_decompose_tanh cpp.threads
        cpp.dynamic_threads cpp.min_chunk_size cpp_wrapper use_fast_math assume_aligned_inputs
        eager_numerics.disable_ftz eager_numerics.division_rounding eager_numerics.use_pytorch_libdevice
        triton.codegen_upcast_to_fp32 triton.persistent_reductions triton.cooperative_reductions
        triton.multi_kernel size_asserts nan_asserts assert_indirect_indexing
    """,
    "cudagraphs": """
        triton.cudagraphs triton.cudagraph_trees triton.cudagraph_support_input_mutation graph_partition
    """,
}


@dataclass(frozen=True)
class Toggle:
    """A setting: the stage that it belongs to, its present value and torch's own, both as source."""

    stage: str
    name: str
    value: str
    default: str
    changed: bool


def settings_of(conditions: Mapping[str, Collection[str]]) -> Iterator[Toggle]:
    """The settings that occur in the conditions around each stage's passes, and those that change numbers.

    ``conditions`` are those of each stage, as source. A setting is named once, under its first stage; one that the
    installed torch does not have is left out.
    """
    config = importlib.import_module("torch._inductor.config")
    entries: Mapping[str, Any] = getattr(config, "_config", {})
    seen = set[str]()
    for stage in dict.fromkeys((*conditions, *_OF_STAGE)):
        guarding = [name for text in sorted(conditions.get(stage, ())) for name in _NAME.findall(text)]
        for name in dict.fromkeys((*_OF_STAGE.get(stage, "").split(), *guarding)):
            if name not in entries or name in seen:
                continue
            seen.add(name)
            value, default = _value(config, name), getattr(entries[name], "default", None)
            yield Toggle(stage, f"config.{name}", _shown(value), _shown(default), value != default)


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part, None)
    return config


def _shown(value: Any) -> str:
    text = getattr(value, "__name__", None) if callable(value) else repr(value)
    text = " ".join((text or type(value).__name__).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
