"""The stages of a compile by the names that the JSON contract gives them. Needs no torch.

No other file spells them: what a stage does is in its class (``fuzzcompile/stages/``), and whoever only records or
shows a name takes it from here.
"""

from __future__ import annotations

from typing import Final

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
