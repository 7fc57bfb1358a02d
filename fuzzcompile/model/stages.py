"""The stage that each file of the compiler belongs to. Needs no torch."""

from __future__ import annotations

import fnmatch
from typing import Final

# The stages of a compile by the names that the JSON contract gives them. Needs no torch.

DYNAMO: Final = "dynamo"
PRE_GRAD: Final = "pre_grad"
FUNCTIONALIZATION: Final = "functionalization"
DECOMPOSITION: Final = "decomposition"
FAKE_TENSOR: Final = "fake_tensor"
JOINT_GRAPH: Final = "joint_graph"
PARTITION: Final = "partition"
FREEZING: Final = "freezing"
POST_GRAD: Final = "post_grad"
LOWERING: Final = "lowering"
SCHEDULER: Final = "scheduler"
CODEGEN: Final = "codegen"
CUDAGRAPHS: Final = "cudagraphs"
RUNTIME: Final = "runtime"

# In the order in which a program passes them.
STAGES = (
    DYNAMO,
    PRE_GRAD,
    FUNCTIONALIZATION,
    DECOMPOSITION,
    FAKE_TENSOR,
    JOINT_GRAPH,
    PARTITION,
    FREEZING,
    POST_GRAD,
    LOWERING,
    SCHEDULER,
    CODEGEN,
    CUDAGRAPHS,
    RUNTIME,
)
# Stages whose passes rewrite a graph: their ledger can be replayed, and a veto switches one rewrite off.
GRAPH_STAGES = (PRE_GRAD, JOINT_GRAPH, FREEZING, POST_GRAD)
# Stages whose coverage is one of rewrites; the others' is one of operators and kernels.
REWRITING_STAGES = (*GRAPH_STAGES, PARTITION)
# Stages that no pass stands for and whose faults show without generated code.
AROUND_CAPTURE = (DYNAMO, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, PARTITION)
# Stages whose faults show in generated code alone.
BEHIND_GRAPHS = (LOWERING, SCHEDULER, CODEGEN, CUDAGRAPHS, RUNTIME)


# Relative to torch's folder; the last matching row counts, and `*` also matches slashes. A file that serves several
# stages counts for the first of them.
_FILES: Final = (
    ("_dynamo/*", DYNAMO),
    ("_functorch/aot_autograd.py", FUNCTIONALIZATION),
    ("_functorch/_aot_autograd/*", FUNCTIONALIZATION),
    ("_subclasses/functional_tensor.py", FUNCTIONALIZATION),
    ("_functorch/partitioners.py", PARTITION),
    ("_decomp/*", DECOMPOSITION),
    ("_refs/*", DECOMPOSITION),
    ("_prims/*", DECOMPOSITION),
    ("_prims_common/*", DECOMPOSITION),
    ("_inductor/decomposition.py", DECOMPOSITION),
    ("_meta_registrations.py", FAKE_TENSOR),
    ("_subclasses/fake_*.py", FAKE_TENSOR),
    ("_inductor/fx_passes/*", POST_GRAD),
    ("_inductor/fx_utils.py", POST_GRAD),
    ("_inductor/fx_passes/pre_grad.py", PRE_GRAD),
    ("_inductor/fx_passes/split_cat.py", PRE_GRAD),
    ("_inductor/fx_passes/group_batch_fusion.py", PRE_GRAD),
    ("_inductor/fx_passes/efficient_conv_bn_eval.py", PRE_GRAD),
    ("_inductor/fx_passes/joint_graph.py", JOINT_GRAPH),
    ("_inductor/fx_passes/fuse_attention.py", JOINT_GRAPH),
    ("_inductor/fx_passes/pad_mm.py", JOINT_GRAPH),
    ("_inductor/fx_passes/replace_random.py", JOINT_GRAPH),
    ("_inductor/fx_passes/misc_patterns.py", JOINT_GRAPH),
    ("_inductor/fx_passes/apply_gumbel_max_trick.py", JOINT_GRAPH),
    ("_inductor/constant_folding.py", JOINT_GRAPH),
    ("_inductor/pattern_matcher.py", JOINT_GRAPH),
    ("_inductor/freezing.py", FREEZING),
    ("_inductor/fx_passes/binary_folding.py", FREEZING),
    ("_inductor/fx_passes/freezing_patterns.py", FREEZING),
    ("_inductor/lowering.py", LOWERING),
    ("_inductor/*_lowerings.py", LOWERING),
    ("_inductor/kernel/*", LOWERING),
    ("_inductor/ir.py", LOWERING),
    ("_inductor/mkldnn_ir.py", LOWERING),
    ("_inductor/graph.py", LOWERING),
    ("_inductor/loop_body.py", LOWERING),
    ("_inductor/inductor_prims.py", LOWERING),
    ("_inductor/index_propagation.py", LOWERING),
    ("_inductor/ops_handler.py", LOWERING),
    ("_inductor/sizevars.py", LOWERING),
    ("_inductor/scheduler.py", SCHEDULER),
    ("_inductor/dependencies.py", SCHEDULER),
    ("_inductor/memory.py", SCHEDULER),
    ("_inductor/dtype_propagation.py", CODEGEN),
    ("_inductor/optimize_indexing.py", CODEGEN),
    ("_inductor/bounds.py", CODEGEN),
    ("_inductor/codegen/*", CODEGEN),
    ("_inductor/codecache.py", CODEGEN),
    ("_inductor/async_compile.py", CODEGEN),
    ("_inductor/cpp_builder.py", CODEGEN),
    ("_inductor/cudagraph_*.py", CUDAGRAPHS),
    ("_inductor/runtime/*", RUNTIME),
    ("_inductor/output_code.py", RUNTIME),
)


# The compiler, dispatch and tracing apart.
_COMPILER: Final = (
    "torch/_inductor/", "torch/_functorch/", "torch/_decomp/", "torch/_refs/", "torch/_prims", "torch/_subclasses/",
    "torch/_meta_registrations.py", "torch/_dynamo/",
)  # fmt: skip


def is_compiler(file: str) -> bool:
    """Return whether a file belongs to the compiler, by its path from the folder that holds torch."""
    return file.startswith(_COMPILER) and file.endswith(".py")


def find_file_stage(file: str) -> str | None:
    """The stage of a file of the compiler, by its path from the folder that holds torch; None if none owns it."""
    name = file.removeprefix("torch/")
    rows = (stage for pattern, stage in reversed(_FILES) if fnmatch.fnmatchcase(name, pattern))
    return next(rows, None) if name != file else None
