"""Inductor settings that a case can be compiled under, and settings that switch on a condition of its source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fuzzcompile.model.facts import facts

Option = bool | int | str | Mapping[str, Mapping[str, int]]
# What of a module few passes look for: parts of a tensor that are joined again, several equal operators, several
# linear layers over one input. An idiom says which of them it has.
Stirred = Literal["rejoined_parts", "equal_operators", "shared_input_linears"]


@dataclass(frozen=True)
class InductorToggle:
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
    def is_cpu_only(self) -> bool:
        """True if it changes nothing but the CPU's code generator."""
        return all(entry.startswith("cpp.") for entry, _ in self.options if entry != "freezing")


_ANY_SIZE = {"min_fuse_set_size": 2}
_FUSIONS = facts().fusions


def _make_pass_toggle(entry: str, name: str, summary: str, normalisation: str) -> InductorToggle:
    passes: dict[str, dict[str, int]] = {normalisation: {}, name: {}}
    options = ((entry, passes),)
    return InductorToggle(name, summary, options, acts_on="rejoined_parts")


def _make_fusion_toggle(entry: str, operator: str, normalised: dict[str, dict[str, int]]) -> InductorToggle:
    """Make the toggle of a fusion of a batch of equal operators; the compiler's own default wants five of them."""
    name, stage = f"batch_{operator}", entry.removesuffix("_fusion_options").replace("_", "-")
    summary = f"The {stage} fusion {name}, for two operators or more."
    options = ((entry, {**normalised, name: _ANY_SIZE}),)
    return InductorToggle(name, summary, options, acts_on="equal_operators")


OWN_RANDOM_STREAM = InductorToggle(
    "own_random_stream", "The compiler draws random numbers of its own.", (("fallback_random", False),)
)
EAGER_NUMBERS = InductorToggle("eager_numbers", "Random numbers are eager's own.", (("fallback_random", True),))
TOGGLES: tuple[InductorToggle, ...] = (
    InductorToggle(
        "freezing", "Weights are constants: folded, packed, fused.", (("freezing", True),), 30, inference=True
    ),
    InductorToggle(
        "linear_folding",
        "Frozen: a constant that is added to or multiplied with a linear layer is folded into its weights.",
        (("freezing", True), ("enable_linear_binary_folding", True)),
        8,
        inference=True,
    ),
    InductorToggle(
        "concat_linear",
        "Frozen: linear layers over one input become one.",
        (("freezing", True), ("cpp.enable_concat_linear", True)),
        6,
        inference=True,
        acts_on="shared_input_linears",
    ),
    InductorToggle(
        "cpp_products",
        "Frozen: products with weights are C++ templates, if those are faster, with what follows fused in.",
        (("freezing", True), ("max_autotune_gemm", True), ("max_autotune_gemm_backends", "CPP,ATEN")),
        6,
        inference=True,
    ),
    *(
        _make_pass_toggle(_FUSIONS.pre_grad_options, name, summary, _FUSIONS.pre_grad_normalisation)
        for name, summary in _FUSIONS.pre_grad.items()
    ),
    *(
        _make_pass_toggle(_FUSIONS.post_grad_options, name, summary, _FUSIONS.post_grad_normalisation)
        for name, summary in _FUSIONS.post_grad.items()
    ),
    *(
        _make_fusion_toggle(_FUSIONS.pre_grad_options, operator, {_FUSIONS.pre_grad_normalisation: {}})
        for operator in _FUSIONS.pre_grad_batches
    ),
    *(_make_fusion_toggle(_FUSIONS.post_grad_options, operator, {}) for operator in _FUSIONS.post_grad_batches),
    OWN_RANDOM_STREAM,
    EAGER_NUMBERS,
    InductorToggle("deterministic", "Nothing that affects numerics is timed.", (("deterministic", True),), 1),
    InductorToggle("batch_invariant", "A sample has the same bits in every batch.", (("batch_invariant", True),), 1),
    InductorToggle("emulate_precision_casts", "Intermediate casts are kept.", (("emulate_precision_casts", True),)),
    InductorToggle("no_vectors", "Kernels without vector instructions.", (("cpp.simdlen", 1),)),
    InductorToggle(
        "no_tail_vectors", "Loop tails without vector instructions.", (("cpp.enable_loop_tail_vec", False),)
    ),
    InductorToggle("narrow_fusion", "Kernels of four operators at most.", (("max_fusion_size", 4),)),
    InductorToggle("no_reinplacing_of_buffers", "No buffer is written in place.", (("inplace_buffers", False),)),
    InductorToggle("no_buffer_reuse", "No buffer is used again.", (("allow_buffer_reuse", False),)),
    InductorToggle("pointwise_cat", "Concatenations become pointwise kernels.", (("force_pointwise_cat", True),)),
    InductorToggle("aggressive_fusion", "Fuses with fewer shared reads.", (("aggressive_fusion", True),)),
    InductorToggle("no_constant_folding", "Uniform constants stay.", (("joint_graph_constant_folding", False),)),
    InductorToggle("no_locality", "Nodes are not moved to their uses.", (("reorder_for_locality", False),)),
    InductorToggle("no_peak_reordering", "Nodes are not moved for memory.", (("reorder_for_peak_memory", False),)),
    InductorToggle("no_unrolling", "Short reductions stay loops.", (("unroll_reductions_threshold", 1),)),
    InductorToggle("eager_realisation", "Values are stored after two reads.", (("realize_reads_threshold", 2),)),
    InductorToggle("partitioned_scatter", "Scatters into partitions.", (("partitioned_scatter_enabled", True),)),
    InductorToggle("no_index_propagation", "Indices are not folded.", (("constant_and_index_propagation", False),)),
    InductorToggle("dead_code", "Dead code is removed before the passes.", (("dce", True),)),
)
# Drawn only where the compiler works for a GPU.
FOR_GPU: tuple[InductorToggle, ...] = (
    InductorToggle(
        "padded_products", "Matrix products are padded, whatever it costs.", (("force_shape_pad", True),), 24
    ),
    InductorToggle(
        "triton_products",
        "Matrix products are Triton's templates, with what follows them fused in.",
        (("max_autotune_gemm", True), ("max_autotune_gemm_backends", "TRITON")),
        32,
    ),
    InductorToggle(
        "looped_reductions", "No reduction holds its row at once.", (("triton.persistent_reductions", False),), 24
    ),
    InductorToggle("unsplit_reductions", "No reduction takes two kernels.", (("split_reductions", False),), 8),
    InductorToggle(
        "mixed_reductions",
        "Sums over rows and over columns share a kernel, however small.",
        (("triton.mix_order_reduction_non_strict_mode", True),),
        24,
    ),
    InductorToggle("combined_kernels", "Independent kernels become one.", (("combo_kernels", True),), 16),
    InductorToggle("decomposed_products", "Narrow products become sums.", (("coordinate_descent_tuning", True),), 16),
    InductorToggle(
        "permuted_products",
        "Permutations around matrix products are folded into them.",
        (("permute_fusion", True),),
        12,
    ),
    InductorToggle(
        "two_dimensional_tiles", "Kernels are tiled in more dimensions.", (("triton.prefer_nd_tiling", True),), 16
    ),
    InductorToggle(
        "tiled_reductions",
        "Reductions are tiled in more dimensions.",
        (("triton.prefer_nd_tiling", True), ("triton.tile_reductions", True)),
        8,
    ),
    InductorToggle(
        "block_pointers", "Kernels address blocks instead of elements.", (("triton.use_block_ptr", True),), 16
    ),
    InductorToggle(
        "dense_indices", "Every index has all dimensions of its block.", (("triton.dense_indexing", True),), 1
    ),
    InductorToggle(
        "native_products", "Matrix products are loops like any other.", (("triton.native_matmul", True),), 16
    ),
    InductorToggle("two_pass_softmax", "Softmax takes its maximum and its sum apart.", (("online_softmax", False),), 8),
    InductorToggle(
        "fixed_loop_order", "Fusion changes no order of loops.", (("loop_ordering_after_fusion", False),), 8
    ),
    InductorToggle(
        "untiled_by_strides", "Tiles do not follow strides.", (("triton.coalesce_tiling_analysis", False),), 8
    ),
    InductorToggle("back_to_back_products", "Two matrix products become one kernel.", (("b2b_gemm_pass", True),), 8),
)

_BY_NAME = {toggle.name: toggle for toggle in (*TOGGLES, *FOR_GPU)}


def find_toggle(name: str) -> InductorToggle:
    """The toggle of that name."""
    return _BY_NAME[name]


def collect_options(names: tuple[str, ...]) -> dict[str, object]:
    """The options of ``torch.compile`` that these toggles make together."""
    return merge_settings(dict(find_toggle(name).options) for name in names if not find_toggle(name).inference)


def collect_config(names: tuple[str, ...]) -> dict[str, object]:
    """The entries of ``torch._inductor.config`` that these toggles need in force around everything."""
    return merge_settings(dict(find_toggle(name).options) for name in names if find_toggle(name).inference)


def merge_settings(parts: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Several settings in one; dictionaries are merged, of other values the last counts."""
    result: dict[str, object] = {}
    for part in parts:
        for entry, value in part.items():
            before = result.get(entry)
            merged = isinstance(before, Mapping) and isinstance(value, Mapping) and {**before, **value}
            result[entry] = merged or value
    return result


# The settings under which a condition of the compiler's source holds.

Settings = dict[str, object]
"""Entries of ``torch._inductor.config`` and their values; a dictionary's are merged into what the entry holds."""
Present = Callable[[str], object]
"""The present value of an entry, dotted where it is (``cpp.simdlen``); where there is none, it raises AttributeError or
gives what no entry holds."""


def solve_switches(condition: str, present: Present) -> Settings:
    """Return the settings under which ``condition``, source of the compiler, no longer fails on settings alone.

    A part that depends on the program, or cannot be solved, adds no setting.
    """
    try:
        tree = ast.parse(condition, mode="eval").body if condition else None
    except SyntaxError:
        return {}
    return {} if tree is None else add_prerequisites(_solve(tree, True, present))


def switch_entry_on(name: str, present: Present) -> Settings:
    """Return the settings that switch on an entry: ``cpp.enable_concat_linear``, ``pre_grad_fusion_options:key``."""
    entry, colon, key = name.partition(":")
    if colon:
        return add_prerequisites({entry: {key: {}}})
    return {} if _read_value(entry, present) is True else add_prerequisites({entry: True})


def add_prerequisites(settings: Settings) -> Settings:
    """Add the settings that a pass needs: a normalisation that has to run before it, or the sizes of a fusion.

    The compiler runs the passes of its fusion options in the order of their keys.
    """
    toggles = [dict[str, object](toggle.options) for toggle in (*TOGGLES, *FOR_GPU)]
    before = merge_settings(
        options for options in toggles if any(_sets_wanted(options, entry, value) for entry, value in settings.items())
    )
    return merge_settings(
        [before, {entry: _drop_present(value, before.get(entry)) for entry, value in settings.items()}]
    )


def _drop_present(value: object, before: object) -> object:
    if not isinstance(value, dict) or not isinstance(before, dict):
        return value
    return {key: inner for key, inner in value.items() if key not in before}


def _sets_wanted(options: Mapping[str, object], entry: str, value: object) -> bool:
    mine = options.get(entry)
    return isinstance(value, dict) and isinstance(mine, Mapping) and bool(value) and list(mine)[-1] in value


def _solve(test: ast.expr, wanted: bool, present: Present) -> Settings:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _solve(test.operand, not wanted, present)
    if isinstance(test, ast.BoolOp):
        parts = [_solve(part, wanted, present) for part in test.values]
        if isinstance(test.op, ast.And) is wanted:
            return merge_settings(parts)
        return min(parts, key=len)  # one that holds already asks for nothing
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _solve_comparison(test.left, test.ops[0], test.comparators[0], wanted, present)
    entry = _read_entry(test)
    if entry is None or not isinstance(_read_value(entry, present), (bool, type(None))):
        return {}
    return {} if bool(_read_value(entry, present)) is wanted else {entry: wanted}


def _solve_comparison(left: ast.expr, how: ast.cmpop, right: ast.expr, wanted: bool, present: Present) -> Settings:
    constant, entry = left if isinstance(left, ast.Constant) else right, _read_entry(right) or _read_entry(left)
    if entry is None or not isinstance(constant, ast.Constant):
        return {}
    value = _read_value(entry, present)
    if isinstance(how, ast.In) and wanted and isinstance(value, Mapping) and constant.value not in value:
        return {entry: {constant.value: {}}}
    if isinstance(how, (ast.Eq, ast.Is)) is wanted and isinstance(how, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return {} if value == constant.value else {entry: constant.value}
    return {}


def _read_entry(node: ast.expr) -> str | None:
    """``cpp.simdlen`` of the expression ``config.cpp.simdlen``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in ("config", "inductor_config") and parts:
        return ".".join(parts)
    return None


def _read_value(entry: str, present: Present) -> object:
    try:
        return present(entry)
    except AttributeError:
        return Ellipsis  # this torch has no such entry: nothing to set
