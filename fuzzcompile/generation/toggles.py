"""Settings of the compiler that a case can be compiled under: what changes numerics, fusion or which passes run.

They are names in ``torch._inductor.config`` or its fusion options; a campaign rules out those that the installed
torch lacks (`fuzzcompile.generation.Profile.without`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Option = bool | int | str | Mapping[str, Mapping[str, int]]
# What of a module few passes look for: parts of a tensor that are joined again, several equal operators, several
# linear layers over one input. An idiom says which of them it has.
Stirred = Literal["rejoined_parts", "equal_operators", "shared_input_linears"]


@dataclass(frozen=True)
class Toggle:
    """One setting: the entry of the config, its value, and how often it is drawn among the others.

    The fusion options of several toggles are merged. ``inference`` ones act on frozen weights, so they are drawn
    without gradients only; dynamo reads them while it traces, so they have to be in force around everything; other
    toggles are options of ``torch.compile``. A toggle that ``acts_on`` something is drawn more often with a layer that
    has it.
    """

    name: str
    summary: str
    options: tuple[tuple[str, Option], ...]
    weight: int = 2
    inference: bool = False
    acts_on: Stirred | None = None

    @property
    def of_the_cpu(self) -> bool:
        """True if it changes nothing but the CPU's code generator."""
        return all(entry.startswith("cpp.") for entry, _ in self.options if entry != "freezing")


# Pattern passes over torch-level graphs, each with the normalisation that it expects to have run.
_PRE_GRAD = {
    "normalization_pass": "Calls of split, cat, stack and the like get one form.",
    "remove_split_with_size_one_pass": "A split into one part is left out.",
    "merge_getitem_cat_pass": "Neighbouring parts of a split that are concatenated become one part.",
    "merge_splits_pass": "A split of a part of a split becomes one split.",
    "mutate_cat_pass": "A concatenation of parts of a split becomes a slice.",
    "split_cat_pass": "Parts of a split that are concatenated or stacked are not cut at all.",
    "unbind_stack_pass": "Unbound parts that are stacked again are not unbound.",
    "split_cat_to_slices_pass": "A concatenation of few parts of a split becomes slices.",
    "unbind_cat_to_view_pass": "A concatenation of unbound parts becomes a view.",
    "split_stack_to_cats_pass": "A stack of parts of a split becomes a concatenation.",
    "unbind_stack_to_slices_pass": "A stack of unbound parts becomes slices.",
    "move_reshape_out_of_split_stack_pass": "Reshapes between split and stack move behind it.",
    "einsum_to_pointwise_pass": "An einsum with a weight for each token becomes a product and a sum.",
}
_POST_GRAD = {
    "normalization_aten_pass": "ATen's split and cat get one form.",
    "decompose_mm_pass": "Small matrix products become pointwise products and sums.",
    "unbind_stack_aten_pass": "ATen's unbind and stack cancel.",
    "split_cat_aten_pass": "ATen's split and cat cancel.",
    "select_cat_aten_pass": "ATen's select and cat cancel.",
    "move_view_after_cat_aten_pass": "Views between ATen's split and cat move behind it.",
}
# Fusions of equal operators into a batch; the compiler's own default wants five of them.
_PRE_FUSIONS = (
    "linear",
    "linear_lhs",
    "layernorm",
    "tanh",
    "sigmoid",
    "relu",
    "detach",
    "nan_to_num",
    "clamp",
    "dropout",
)
_POST_FUSIONS = (
    "linear_post_grad", "aten_tanh", "aten_sigmoid", "aten_relu", "aten_add", "aten_sub", "aten_div", "aten_mul",
)  # fmt: skip
_ANY_SIZE = {"min_fuse_set_size": 2}
_NORMALISED: dict[str, dict[str, int]] = {"normalization_pass": {}}
_NORMALISED_ATEN: dict[str, dict[str, int]] = {"normalization_aten_pass": {}}


# Entries of the config that switch passes on, for the graph before its gradients and those after.
_BEFORE_GRADIENTS, _AFTER_GRADIENTS = "pre_grad_fusion_options", "post_grad_fusion_options"


def _pass(entry: str, name: str, summary: str, normalised: dict[str, dict[str, int]]) -> Toggle:
    """A pattern pass that is switched on in the config's ``entry``."""
    options = ((entry, {**normalised, name: {}}),)
    return Toggle(name, summary, options, acts_on="rejoined_parts")


def _fusion(entry: str, operator: str, normalised: dict[str, dict[str, int]]) -> Toggle:
    """A fusion of a batch of equal operators."""
    name, stage = f"batch_{operator}", entry.removesuffix("_fusion_options").replace("_", "-")
    summary = f"The {stage} fusion {name}, for two operators or more."
    options = ((entry, {**normalised, name: _ANY_SIZE}),)
    return Toggle(name, summary, options, acts_on="equal_operators")


OWN_RANDOM_STREAM = Toggle(
    "own_random_stream", "The compiler draws random numbers of its own.", (("fallback_random", False),)
)
EAGER_NUMBERS = Toggle("eager_numbers", "Random numbers are eager's own.", (("fallback_random", True),))
TOGGLES: tuple[Toggle, ...] = (
    Toggle("freezing", "Weights are constants: folded, packed, fused.", (("freezing", True),), 30, inference=True),
    Toggle(
        "linear_folding",
        "Frozen: a constant that is added to or multiplied with a linear layer is folded into its weights.",
        (("freezing", True), ("enable_linear_binary_folding", True)),
        8,
        inference=True,
    ),
    Toggle(
        "concat_linear",
        "Frozen: linear layers over one input become one.",
        (("freezing", True), ("cpp.enable_concat_linear", True)),
        6,
        inference=True,
        acts_on="shared_input_linears",
    ),
    Toggle(
        "cpp_products",
        "Frozen: products with weights are C++ templates, if those are faster, with what follows fused in.",
        (("freezing", True), ("max_autotune_gemm", True), ("max_autotune_gemm_backends", "CPP,ATEN")),
        6,
        inference=True,
    ),
    *(_pass(_BEFORE_GRADIENTS, name, summary, _NORMALISED) for name, summary in _PRE_GRAD.items()),
    *(_pass(_AFTER_GRADIENTS, name, summary, _NORMALISED_ATEN) for name, summary in _POST_GRAD.items()),
    *(_fusion(_BEFORE_GRADIENTS, operator, _NORMALISED) for operator in _PRE_FUSIONS),
    *(_fusion(_AFTER_GRADIENTS, operator, {}) for operator in _POST_FUSIONS),
    OWN_RANDOM_STREAM,
    EAGER_NUMBERS,
    Toggle("deterministic", "Nothing that affects numerics is timed.", (("deterministic", True),), 1),
    Toggle("batch_invariant", "A sample has the same bits in every batch.", (("batch_invariant", True),), 1),
    Toggle("emulate_precision_casts", "Intermediate casts are kept.", (("emulate_precision_casts", True),)),
    Toggle("no_vectors", "Kernels without vector instructions.", (("cpp.simdlen", 1),)),
    Toggle("no_tail_vectors", "Loop tails without vector instructions.", (("cpp.enable_loop_tail_vec", False),)),
    Toggle("narrow_fusion", "Kernels of four operators at most.", (("max_fusion_size", 4),)),
    Toggle("no_reinplacing_of_buffers", "No buffer is written in place.", (("inplace_buffers", False),)),
    Toggle("no_buffer_reuse", "No buffer is used again.", (("allow_buffer_reuse", False),)),
    Toggle("pointwise_cat", "Concatenations become pointwise kernels.", (("force_pointwise_cat", True),)),
    Toggle("aggressive_fusion", "Fuses with fewer shared reads.", (("aggressive_fusion", True),)),
    Toggle("no_constant_folding", "Uniform constants stay.", (("joint_graph_constant_folding", False),)),
    Toggle("no_locality", "Nodes are not moved to their uses.", (("reorder_for_locality", False),)),
    Toggle("no_peak_reordering", "Nodes are not moved for memory.", (("reorder_for_peak_memory", False),)),
    Toggle("no_unrolling", "Short reductions stay loops.", (("unroll_reductions_threshold", 1),)),
    Toggle("eager_realisation", "Values are stored after two reads.", (("realize_reads_threshold", 2),)),
    Toggle("partitioned_scatter", "Scatters into partitions.", (("partitioned_scatter_enabled", True),)),
    Toggle("no_index_propagation", "Indices are not folded.", (("constant_and_index_propagation", False),)),
    Toggle("dead_code", "Dead code is removed before the passes.", (("dce", True),)),
)
# Drawn only where the compiler works for a GPU.
FOR_GPU: tuple[Toggle, ...] = (
    Toggle("padded_products", "Matrix products are padded, whatever it costs.", (("force_shape_pad", True),), 24),
    Toggle(
        "triton_products",
        "Matrix products are Triton's templates, with what follows them fused in.",
        (("max_autotune_gemm", True), ("max_autotune_gemm_backends", "TRITON")),
        32,
    ),
    Toggle("looped_reductions", "No reduction holds its row at once.", (("triton.persistent_reductions", False),), 24),
    Toggle("unsplit_reductions", "No reduction takes two kernels.", (("split_reductions", False),), 8),
    Toggle(
        "mixed_reductions",
        "Sums over rows and over columns share a kernel, however small.",
        (("triton.mix_order_reduction_non_strict_mode", True),),
        24,
    ),
    Toggle("combined_kernels", "Independent kernels become one.", (("combo_kernels", True),), 16),
    Toggle("decomposed_products", "Narrow products become sums.", (("coordinate_descent_tuning", True),), 16),
    Toggle(
        "permuted_products",
        "Permutations around matrix products are folded into them.",
        (("permute_fusion", True),),
        12,
    ),
    Toggle("two_dimensional_tiles", "Kernels are tiled in more dimensions.", (("triton.prefer_nd_tiling", True),), 16),
    Toggle(
        "tiled_reductions",
        "Reductions are tiled in more dimensions.",
        (("triton.prefer_nd_tiling", True), ("triton.tile_reductions", True)),
        8,
    ),
    Toggle("block_pointers", "Kernels address blocks instead of elements.", (("triton.use_block_ptr", True),), 16),
    Toggle("dense_indices", "Every index has all dimensions of its block.", (("triton.dense_indexing", True),), 1),
    Toggle("native_products", "Matrix products are loops like any other.", (("triton.native_matmul", True),), 16),
    Toggle("two_pass_softmax", "Softmax takes its maximum and its sum apart.", (("online_softmax", False),), 8),
    Toggle("fixed_loop_order", "Fusion changes no order of loops.", (("loop_ordering_after_fusion", False),), 8),
    Toggle("untiled_by_strides", "Tiles do not follow strides.", (("triton.coalesce_tiling_analysis", False),), 8),
    Toggle("back_to_back_products", "Two matrix products become one kernel.", (("b2b_gemm_pass", True),), 8),
)

_BY_NAME = {toggle.name: toggle for toggle in (*TOGGLES, *FOR_GPU)}


def toggle(name: str) -> Toggle:
    """The toggle of that name."""
    return _BY_NAME[name]


def options(names: tuple[str, ...]) -> dict[str, object]:
    """The options of ``torch.compile`` that these toggles make together."""
    return joined(dict(toggle(name).options) for name in names if not toggle(name).inference)


def config(names: tuple[str, ...]) -> dict[str, object]:
    """The entries of ``torch._inductor.config`` that these toggles need in force around everything."""
    return joined(dict(toggle(name).options) for name in names if toggle(name).inference)


def joined(parts: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Several settings in one; dictionaries are merged, of other values the last counts."""
    result: dict[str, object] = {}
    for part in parts:
        for entry, value in part.items():
            before = result.get(entry)
            merged = isinstance(before, Mapping) and isinstance(value, Mapping) and {**before, **value}
            result[entry] = merged or value
    return result
