"""The stages of the compiler: the one table of their names, titles, labels and files. Needs no torch.

What triage looks at in a stage is in `fuzzcompile.diagnosis.stages`, by these names.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Final

# Names, as in the JSON contract (docs/machines.md).

ATEN: Final = "aten"
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

INDUCTOR_LABEL, DISPATCHER_LABEL = "module: inductor", "module: pt2-dispatcher"


@dataclass(frozen=True)
class CompilerStage:
    """A stage of the compiler."""

    name: str  # as in the JSON contract
    title: str  # its name in an issue, as PyTorch's rubric for triage has it
    # patterns of its files, relative to torch's folder; ``*`` matches slashes too. A file that serves several stages
    # belongs to the first of them; of several patterns, the longest counts.
    files: tuple[str, ...]
    component: str = "inductor"  # the part of PyTorch at fault, as titles of PyTorch's issues name it
    label: str = INDUCTOR_LABEL  # the label of issues about it

    @property
    def is_inductor(self) -> bool:
        """True for a part of Inductor's own."""
        return self.component == "inductor"


# In the order in which a program passes them.
STAGE_TABLE: Final = (
    CompilerStage(ATEN, "an ATen kernel", (), "aten", "module: correctness (silent)"),
    CompilerStage(DYNAMO, "Dynamo", ("_dynamo/*",), "dynamo", "module: dynamo"),
    CompilerStage(
        PRE_GRAD,
        "Inductor's pre-grad passes",
        (
            "_inductor/fx_passes/pre_grad.py",
            "_inductor/fx_passes/split_cat.py",
            "_inductor/fx_passes/group_batch_fusion.py",
            "_inductor/fx_passes/efficient_conv_bn_eval.py",
        ),
    ),
    CompilerStage(
        FUNCTIONALIZATION,
        "AOTAutograd",
        ("_functorch/aot_autograd.py", "_functorch/_aot_autograd/*", "_subclasses/functional_tensor.py"),
        "aot autograd",
        "module: functionalization",
    ),
    CompilerStage(
        DECOMPOSITION,
        "a decomposition",
        ("_decomp/*", "_refs/*", "_prims/*", "_prims_common/*", "_inductor/decomposition.py"),
        "decomposition",
        "module: decompositions",
    ),
    CompilerStage(
        FAKE_TENSOR,
        "a fake tensor rule",
        ("_meta_registrations.py", "_subclasses/fake_*.py"),
        "meta kernel",
        "module: fakeTensor",
    ),
    CompilerStage(
        JOINT_GRAPH,
        "Inductor's joint-graph passes",
        (
            "_inductor/fx_passes/joint_graph.py",
            "_inductor/fx_passes/fuse_attention.py",
            "_inductor/fx_passes/pad_mm.py",
            "_inductor/fx_passes/replace_random.py",
            "_inductor/fx_passes/misc_patterns.py",
            "_inductor/fx_passes/apply_gumbel_max_trick.py",
            "_inductor/constant_folding.py",
            "_inductor/pattern_matcher.py",
        ),
    ),
    CompilerStage(
        PARTITION, "the partitioner (AOTAutograd)", ("_functorch/partitioners.py",), "aot autograd", DISPATCHER_LABEL
    ),
    CompilerStage(
        FREEZING,
        "Inductor's freezing passes",
        ("_inductor/freezing.py", "_inductor/fx_passes/binary_folding.py", "_inductor/fx_passes/freezing_patterns.py"),
    ),
    CompilerStage(POST_GRAD, "Inductor's post-grad passes", ("_inductor/fx_passes/*", "_inductor/fx_utils.py")),
    CompilerStage(
        LOWERING,
        "an Inductor lowering",
        (
            "_inductor/lowering.py",
            "_inductor/*_lowerings.py",
            "_inductor/kernel/*",
            "_inductor/ir.py",
            "_inductor/mkldnn_ir.py",
            "_inductor/graph.py",
            "_inductor/loop_body.py",
            "_inductor/inductor_prims.py",
            "_inductor/index_propagation.py",
            "_inductor/ops_handler.py",
            "_inductor/sizevars.py",
        ),
    ),
    CompilerStage(
        SCHEDULER,
        "Inductor's scheduler",
        ("_inductor/scheduler.py", "_inductor/dependencies.py", "_inductor/memory.py"),
    ),
    CompilerStage(
        CODEGEN,
        "Inductor's code generation",
        (
            "_inductor/dtype_propagation.py",
            "_inductor/optimize_indexing.py",
            "_inductor/bounds.py",
            "_inductor/codegen/*",
            "_inductor/codecache.py",
            "_inductor/async_compile.py",
            "_inductor/cpp_builder.py",
        ),
    ),
    CompilerStage(CUDAGRAPHS, "CUDA graphs", ("_inductor/cudagraph_*.py",), "cudagraphs", "module: cuda graphs"),
    CompilerStage(RUNTIME, "Inductor's runtime", ("_inductor/runtime/*", "_inductor/output_code.py")),
)
STAGES = tuple(stage.name for stage in STAGE_TABLE)
BY_NAME: Final = {stage.name: stage for stage in STAGE_TABLE}
# Stages whose passes rewrite a graph: their ledger can be replayed, and a veto switches one rewrite off.
GRAPH_STAGES = (PRE_GRAD, JOINT_GRAPH, FREEZING, POST_GRAD)
# Stages whose coverage is one of rewrites; the others' is one of operators and kernels.
REWRITING_STAGES = (*GRAPH_STAGES, PARTITION)
# Stages that no pass stands for and whose faults show without generated code.
AROUND_CAPTURE = (DYNAMO, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, PARTITION)
# Stages whose faults show in generated code alone.
BEHIND_GRAPHS = (LOWERING, SCHEDULER, CODEGEN, CUDAGRAPHS, RUNTIME)


# The compiler, dispatch and tracing apart.
_COMPILER: Final = (
    "torch/_inductor/", "torch/_functorch/", "torch/_decomp/", "torch/_refs/", "torch/_prims", "torch/_subclasses/",
    "torch/_meta_registrations.py", "torch/_dynamo/",
)  # fmt: skip


def is_compiler(file: str) -> bool:
    """Return whether a file belongs to the compiler, by its path from the folder that holds torch."""
    return file.startswith(_COMPILER) and file.endswith(".py")


def find_file_stage(file: str) -> str | None:
    """Return the stage of a file, by its path from the folder that holds torch; None if it is in no stage."""
    name = file.removeprefix("torch/")
    matching = [
        (len(pattern), stage.name)
        for stage in STAGE_TABLE
        for pattern in stage.files
        if fnmatch.fnmatchcase(name, pattern)
    ]
    return max(matching)[1] if matching and name != file else None
